"""Objects with wrong fields are refused by an error that names a field, in any framework."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from fuzz.fields import Tensor, Wrong
from fuzz.hostile import is_announced
from fuzz.runners import NumPy

Layer = Callable[..., Any]


def check(wrong: Wrong, tensor: Tensor, layer: Layer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            wrong.use(tensor, layer)
        except Exception as error:
            named = any(word in str(error) for word in wrong.words)
            if not (is_announced(error) and named):
                raise AssertionError(f"{wrong} raised {type(error).__name__}: {error}") from error


def tensor_of(runner: NumPy) -> Tensor:
    return lambda x: runner.tensor(x, str(x.dtype))


def layer_of(runner: NumPy) -> Layer:
    """Return the layers of a framework; of NumPy and TensorFlow, which have none, nothing."""
    if runner.name == "torch":
        from anyscore.torch import Attention

        return Attention
    if runner.name == "jax":
        import jax

        import anyscore.jax

        def make(score: Any, **options: Any) -> Any:
            made = anyscore.jax.Attention(score, **options)

            def call(*tokens: Any, **given: Any) -> Any:
                shown = [getattr(x, "key", x) for x in tokens]  # prepared keys
                return made.apply(made.init(jax.random.key(0), *shown), *tokens, **given)

            return call

        return make
    return lambda *args, **options: lambda *args, **options: None
