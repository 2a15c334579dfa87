"""Calls that look like a known one, and are another: each gives what a first call gives."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import anyscore
from anyscore import attention, make_cache, prepare_keys
from anyscore.kernels import cpu
from anyscore.masks.objects import All, Causal, Interval, Lengths, Mask
from anyscore.score.factors import Factors
from anyscore.score.outer import Outer
from anyscore.score.pairs import PRODUCT
from anyscore.torch import Attention
from helpers.repeated_calls import forget, is_known

pytestmark = pytest.mark.skipif(cpu.problem() is not None, reason="the C++ core is not built")


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    forget()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


Q, K, V = drawn(2, 3, 4), drawn(2, 5, 4, seed=1), drawn(2, 5, 4, seed=2)


def outcome(call: Any) -> Any:
    """Return the output of a call, or its error as text."""
    try:
        return call()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def check(known: Any, other: Any) -> None:
    """Assert that `other` gives, after three known calls, what it gives as a first call."""
    first = outcome(other)
    forget()
    for _ in range(3):
        known()
    for _ in range(3):
        found = outcome(other)
        if isinstance(first, str):
            assert found == first
        else:
            torch.testing.assert_close(found, first)


def test_widths_of_one_score() -> None:
    """The scale of a scaled dot product depends on the width."""
    wide = drawn(2, 3, 16)
    check(lambda: attention(Q, Q, Q), lambda: attention(wide, wide, wide))
    forget()
    exact = [attention(x, x, x, impl="reference") for x in (Q, wide)]
    layer = Attention()
    for _ in range(4):
        for x, y in zip((Q, wide), exact, strict=True):
            torch.testing.assert_close(attention(x, x, x), y)
            torch.testing.assert_close(layer(x, x, x), y)


def test_caches_of_two_widths() -> None:
    caches = []
    for width in (4, 16):
        k, v = drawn(2, 5, width), drawn(2, 5, 3)
        caches.append((make_cache(k, v, capacity=6), drawn(2, 1, width), k, v))
    for _ in range(4):
        for cache, query, k, v in caches:
            torch.testing.assert_close(
                cache.attend(query), attention(query, k, v, impl="reference")
            )


@pytest.mark.parametrize("number", [np.float64, np.float32, Fraction, float, int])
def test_numbers_of_scores(number: Any) -> None:
    check(
        lambda: attention(Q, Q, Q, score=anyscore.Gaussian(number(2))),
        lambda: attention(Q, Q, Q, score=anyscore.Gaussian(number(1))),
    )
    for _ in range(3):
        attention(Q, Q, Q, score=anyscore.Gaussian(number(2)))
    assert is_known(anyscore.Gaussian(number(2)), Q, Q, Q) is (number in (int, float))
    for wrong in (-1, 0):
        check(
            lambda: attention(Q, Q, Q, score=anyscore.Gaussian(number(2))),
            lambda wrong=wrong: attention(Q, Q, Q, score=anyscore.Gaussian(number(wrong))),
        )


OF_ANOTHER_TYPE: list[tuple[Any, Any]] = [
    (Causal(offset=1), Causal(offset=1.0)),
    (Causal(offset=1), Causal(offset=True)),
    (Lengths(1), Lengths(True)),
    (Interval(1, None), Interval(True, None)),
]


@pytest.mark.parametrize(("known", "other"), OF_ANOTHER_TYPE)
def test_numbers_of_masks(known: Any, other: Any) -> None:
    check(lambda: attention(Q, K, V, mask=known), lambda: attention(Q, K, V, mask=other))


def test_numbers_of_layers() -> None:
    layer = Attention(softcap=1.0)
    for _ in range(3):
        layer(Q, K, V)
    layer.softcap = True
    with pytest.raises(TypeError, match="softcap"):
        layer(Q, K, V)


def test_keys_prepared_for_another_score() -> None:
    for other in (anyscore.Cosine(), anyscore.Dot(), anyscore.Trilinear(*(drawn(4),) * 3)):
        keys = prepare_keys(K, other)
        check(lambda: attention(Q, K, K), lambda keys=keys: attention(Q, keys, K))


@dataclass
class Callable_:
    scale: float

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        return self.scale * q @ k.mT


@dataclass(frozen=True)
class Listed(anyscore.Score):
    numbers: Any

    def lower(self, xp: Any, query: Tensor, key: Tensor) -> Factors:
        return Factors(query, key, PRODUCT, scale=self.numbers[0])


@pytest.mark.parametrize("score", [Callable_(2.0), Listed([2.0])], ids=["callable", "score"])
def test_scores_that_have_no_hash(score: Any) -> None:
    layer = Attention(score)
    exact = attention(2 * Q, K, V, score=anyscore.Dot(), impl="reference")
    for _ in range(4):
        torch.testing.assert_close(layer(Q, K, V), exact)
        torch.testing.assert_close(attention(Q, K, V, score=score), exact)


@dataclass(frozen=True, eq=False)
class Biased(anyscore.Score):
    w: Any
    settings: Any = None

    def lower(self, xp: Any, query: Tensor, key: Tensor) -> Factors:
        cap = None if self.settings is None else Outer("tanh", self.settings["cap"])
        return Factors(query, key, PRODUCT, key_bias=(key * self.w).sum(-1), outer=cap)


def test_padding_reaches_no_parameter_of_a_key_bias() -> None:
    key, w = K.clone(), drawn(4).requires_grad_()
    key[:, 4] = torch.nan
    for _ in range(4):
        found = attention(Q, key, V, score=Biased(w), valid_lens=torch.tensor([4, 3]))
        (slope,) = torch.autograd.grad(found.sum(), w)
        assert slope.isfinite().all()


def test_settings_of_a_score_of_a_user() -> None:
    settings, strided = {"cap": 1.0}, drawn(2, 3, 8)[..., :4]
    score = Biased(torch.zeros(4), settings)
    for cap, x in ((1.0, Q), (1.0, Q), (3.0, strided), (3.0, strided), (3.0, Q), (3.0, Q)):
        settings["cap"] = cap
        exact = attention(x, x, x, score=score, impl="reference")
        torch.testing.assert_close(attention(x, x, x, score=score), exact)


class FirstKeys(All):
    """A mask that was made of another, with a state of its own."""

    def __init__(self, n: int) -> None:
        super().__init__((Causal("end"),))
        object.__setattr__(self, "n", n)

    def lower(self, call: Any) -> Any:
        return Lengths(vars(self)["n"]).lower(call)


def test_masks_of_a_user() -> None:
    check(
        lambda: attention(Q, K, V, mask=FirstKeys(1)), lambda: attention(Q, K, V, mask=FirstKeys(3))
    )


class Drawn(Mask):
    """A mask that is another at each call."""

    def lower(self, call: Any) -> Any:
        return call.lowered(stop=torch.randint(1, 6, (2, 3)))


def test_weights_are_of_the_mask_and_lengths_of_the_call() -> None:
    layer = Attention()
    for _ in range(4):
        output = layer(Q, K, V, mask=Drawn())
        torch.testing.assert_close(layer.attention_weights @ V, output)
    for lengths in (torch.tensor([4, 2]), [4, 2], np.array([4, 2])):
        for _ in range(4):
            lengths[0] = 4
            output = layer(Q, K, V, lengths)
            lengths[0] = 1
            torch.testing.assert_close(layer.attention_weights @ V, output)


WRONG_PARAMETERS: dict[str, tuple[Any, Any]] = {
    "half": (anyscore.Bilinear(drawn(4, 4)), anyscore.Bilinear(drawn(4, 4).half())),
    "meta": (
        anyscore.Additive(drawn(6, 4), drawn(6, 4), drawn(6)),
        anyscore.Additive(drawn(6, 4).to("meta"), drawn(6, 4), drawn(6)),
    ),
    "bias": (
        anyscore.Additive(drawn(6, 4), drawn(6, 4), drawn(6), drawn(6)),
        anyscore.Additive(drawn(6, 4), drawn(6, 4), drawn(6), drawn(6).bfloat16()),
    ),
    "boolean": (
        anyscore.Gaussian(torch.tensor(1.0)),
        anyscore.Gaussian(torch.tensor(True)),
    ),
}


@pytest.mark.parametrize("name", WRONG_PARAMETERS)
def test_parameters_of_another_dtype_or_device(name: str) -> None:
    right, wrong = WRONG_PARAMETERS[name]
    check(lambda: attention(Q, K, V, score=right), lambda: attention(Q, K, V, score=wrong))


@pytest.mark.parametrize("change", ["half", "meta"])
def test_tokens_of_another_dtype_or_device(change: str) -> None:
    score = anyscore.Bilinear(drawn(4, 4))
    other = Q.half() if change == "half" else Q.to("meta")
    check(lambda: attention(Q, K, V, score=score), lambda: attention(other, K, V, score=score))


def test_appends_to_a_cache_of_inference() -> None:
    with torch.inference_mode():
        cache = make_cache(K, V, capacity=20)
        for _ in range(3):
            cache.append(K[:, :1], V[:, :1])
    for _ in range(3):
        with pytest.raises(RuntimeError, match="inference"):
            cache.append(K[:, :1], V[:, :1])
    assert int(cache.length) == 8
