"""Tensors at odd addresses, as of torch.frombuffer: results as of others, and the core copies them.

Loads at odd addresses show under sanitizers alone, so one test asks the core what it takes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore import Additive, attention, make_cache, prepare_keys, scores
from anyscore.call.operands import Operands, Settings
from anyscore.kernels import cpu
from helpers import machine

pytestmark = [pytest.mark.sample, machine.needs_core]

DTYPES = torch.float32, torch.float64, torch.bfloat16, torch.float16


def odd(x: Tensor) -> Tensor:
    """Return the same numbers, contiguous, at an odd address; an empty tensor as it is."""
    if not x.numel():
        return x
    memory = bytearray(x.numel() * x.itemsize + 2)
    first = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    found = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=1 + first % 2)
    assert found.data_ptr() % 2
    return found.view(x.shape).copy_(x.detach())


@pytest.mark.parametrize("dtype", DTYPES)
def test_calls_at_odd_addresses(dtype: torch.dtype) -> None:
    """Calls with gradients and without, the first and repeated ones, of all entry points."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, n, 4).to(dtype) for n in (5, 7, 7))
    w = torch.randn(4).to(dtype)
    lengths = torch.tensor([3, 7])
    results: list[list[Tensor]] = [[], []]
    for found, to in zip(results, (torch.clone, odd), strict=True):
        lens = to(lengths)
        for _ in range(4):
            q, k, v, u = (to(x).requires_grad_() for x in (query, key, value, w))
            score = Additive(None, None, u)
            output = attention(q, k, v, score=score, valid_lens=lens)
            found += [output, *torch.autograd.grad(output.sum(), (q, k, v, u))]
            with torch.no_grad():
                found.append(attention(q, k, v, score=score, valid_lens=lens))
                found.append(
                    attention(q, k, v, score=score, valid_lens=lens, normalizer="sparsemax")
                )
                found.append(scores(q, k, score=score))
                one = to(query[:, :1])
                found.append(attention(one, prepare_keys(k, score), v, score=score))
        cache = make_cache(
            to(key[:, :0]), to(value[:, :0]), Additive(None, None, to(w)), capacity=7
        )
        for i in range(7):
            score, at = Additive(None, None, to(w)), slice(i, i + 1)
            cache = cache.append(to(key[:, at]), to(value[:, at]), score=score)
            found.append(cache.attend(to(query[:, :1]), score=score))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_the_core_repeats_calls_on_aligned_tensors_alone() -> None:
    xs = [torch.randn(shape) for shape in ((2, 5, 3), (2, 7, 3), (3,), (2, 7), (2, 7, 6))]
    settings = Settings("tanh", 1.0, 1, 0.0, 1, (2,))

    def empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
        return like.new_empty(shape)

    def repeated(x: Operands) -> Any:
        return cpu.repeated_call(x, settings, None, empty, False)

    given: list[Any] = [*xs, None, None, torch.tensor([[4], [5]]), None, None]
    call = repeated(Operands(*xs, stop=given[7]))
    assert call.infer(tuple(given), 1).isfinite().all()
    for i, x in enumerate(given):
        if x is not None:
            other = [*given[:i], odd(x), *given[i + 1 :]]
            assert call.infer(tuple(other), 1) is None
            assert call.forward(tuple(other), 1) is None
            with pytest.raises(ValueError, match="have to be copied"):
                repeated(Operands(*other[:5], stop=other[7]))
