"""Repeated calls of `scores`, and of pointers, which compute their weights from scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyscore
from anyscore import plan, prepare_keys, scores
from anyscore.kernels import cpu
from anyscore.masks.objects import Causal, Keys
from anyscore.torch import Pointer
from helpers.repeated_calls import forget, is_repeated

pytestmark = pytest.mark.skipif(cpu.problem() is not None, reason="the core alone repeats calls")

SCORES = {
    "dot": lambda w: anyscore.Dot(),
    "additive": lambda w: anyscore.Additive(None, None, w),
    "concat": lambda w: anyscore.Concat(torch.stack((w, w)).repeat(2, 2), w[:4]),
    "trilinear": lambda w: anyscore.Trilinear(w, w, w),
    "lorentz": lambda w: anyscore.Lorentz(),
}
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "lengths": {"valid_lens": torch.tensor([3, 0])},
    "booleans": {"mask": torch.tensor([True, True, False, True, False]).expand(2, 3, 5)},
    "keys": {"mask": Keys(torch.tensor([True, True, False, True, False]))},
    "causal": {"mask": Causal(align="end")},
    "softcap": {"softcap": 2.0},
}


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    forget()


def drawn(*shape: int, seed: int, dtype: Any = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", SCORES)
def test_later_scores_have_the_bits_of_the_first(name: str, mask: str, dtype: Any) -> None:
    """Scores and their gradients; a matrix of gradients with strides of 0 among them."""
    for seed in range(2):
        found = []
        for _ in range(5):
            query = drawn(2, 3, 8, seed=seed, dtype=dtype).requires_grad_()
            key = drawn(2, 5, 8, seed=seed + 2, dtype=dtype).requires_grad_()
            weight = drawn(8, seed=seed + 4, dtype=dtype)
            s = scores(query, key, score=SCORES[name](weight), **MASKS[mask])
            some = torch.where(s.isfinite(), s, 0)
            dense = torch.autograd.grad((some * some).sum(), (query, key), retain_graph=True)
            flat = torch.autograd.grad(s.sum(), (query, key))
            with torch.no_grad():
                alone = scores(query, key, score=SCORES[name](weight), **MASKS[mask])
            found.append((s, alone, *dense, *flat))
        for later in found[1:]:
            for x, y in zip(later, found[0], strict=True):
                torch.testing.assert_close(x, y, rtol=0, atol=0)
        if dtype == torch.float32 and name in ("dot", "additive"):
            assert is_repeated(s)


def test_second_derivatives() -> None:
    weight, key = drawn(8, seed=0).double(), drawn(5, 8, seed=1).double()

    def of(query: Tensor) -> Tensor:
        return scores(query, key, score=anyscore.Additive(None, None, weight))

    query = drawn(3, 8, seed=2).double().requires_grad_()
    for _ in range(3):
        found = of(query)
    assert is_repeated(found)
    assert torch.autograd.gradgradcheck(of, query)


def test_other_masks_of_a_known_kind() -> None:
    """Booleans of other shapes, dtypes and strides are lowered and refused as in a first call."""
    query, key = drawn(2, 3, 8, seed=0), drawn(2, 5, 8, seed=1)
    known = torch.rand(2, 3, 5) > 0.4
    for _ in range(4):
        scores(query, key, mask=known)
    for mask in (known[:1], known[:, :1], known[0], known.flip(-1), known.mT.contiguous().mT):
        found = scores(query, key, mask=mask)
        exact = scores(query, key, mask=mask, impl="reference")
        torch.testing.assert_close(found, exact)
    for wrong in (known.int(), known[..., :4], known.tolist()[0][0]):
        with pytest.raises((TypeError, ValueError), match="mask"):
            scores(query, key, mask=wrong)


@pytest.mark.parametrize("train", [False, True])
def test_pointers(train: bool) -> None:
    """Later steps have the bits of the first, and see new masks, queries and parameters."""
    pointer = Pointer("additive", 1, 10.0, hidden=8, d_q=6, d_k=6)
    keys = drawn(2, 5, 6, seed=1)

    def step(seed: int, first: bool) -> tuple[Tensor, ...]:
        if first:
            pointer.pointing._calls.forget()
            assert pointer.glimpse is not None
            pointer.glimpse._calls.forget()
        query = drawn(2, 6, seed=seed).requires_grad_(train)
        left = torch.rand(2, 5, generator=torch.Generator().manual_seed(seed)) > 0.4
        left[1] = seed % 2 == 0
        with torch.set_grad_enabled(train):
            found = pointer(query, pointer.prepare_keys(keys), left)
        assert (found.exp() == 0).equal(~left)
        if not train:
            return (found,)
        seen = torch.where(left, found, 0)
        return (found, *torch.autograd.grad((seen**2).sum(), (query, *pointer.parameters())))

    for seed in range(6):
        later, first = step(seed, first=False), step(seed, first=True)
        for _ in range(3):
            step(seed, first=False)
        with torch.no_grad():
            pointer.pointing.get_parameter("w_v.weight").mul_(0.9)
        for x, y in zip(later, first, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_prepared_keys_in_another_order() -> None:
    """Prepared keys of one layout follow each other."""
    query, score = drawn(2, 3, 8, seed=0), anyscore.Additive(None, None, drawn(8, seed=3))
    keys = [prepare_keys(drawn(2, 5, 8, seed=n), score) for n in range(3)]
    exact = [scores(query, key, score=score, impl="fused") for key in keys]
    for _ in range(3):
        for key, y in zip(keys, exact, strict=True):
            assert torch.equal(scores(query, key, score=score), y)


def test_large_matrices_are_not_repeated() -> None:
    """A known call would make one matrix of scores more."""
    query, key = drawn(300, 8, seed=0), drawn(300, 8, seed=1)
    for large in (True, False):
        x = query if large else query[:200]
        for _ in range(3):
            scores(x, key)
        assert plan(x, key).repeated is not large
