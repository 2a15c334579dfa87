"""Repeated calls of functions: forget them, and recognise them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyscore import backends
from anyscore.backends.repeated import REPEATED, kind_of_score


def forget() -> None:
    """Forget all known calls of functions."""
    for known in REPEATED.values():
        known.forget()


def is_known(score: Any, query: Any, key: Any, value: Any) -> bool:
    """Return whether the core would repeat a call without options."""
    repeats = backends.repeats(query)
    if repeats is None:
        return False
    found = repeats.run(kind_of_score(score), query, key, value, None, None, score)
    return found is not None


def is_repeated(output: Tensor) -> bool:
    """Return whether the core repeated the call of this output, with gradients."""
    return type(output.grad_fn).__name__ == "_RepeatedBackward"
