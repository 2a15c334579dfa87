"""Cases that a review found: each failed once."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anyscore import Causal, Concat, Cosine, Gaussian, Laplace, Window, attention, plan
from anyscore.torch import Attention, MultiHeadAttention, masked_softmax


def test_grouped_heads_with_a_larger_batch_of_values() -> None:
    q, k, v = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 7, 8), torch.randn(2, 2, 7, 5)
    out = attention(q, k, v, return_weights=True, return_lse=True)
    assert out.output.shape == (2, 4, 3, 5)
    assert out.weights.shape == (2, 4, 3, 7)
    assert out.lse.shape == (2, 4, 3)
    for b in range(2):
        one = attention(q, k, v[b : b + 1], return_weights=True, return_lse=True)
        torch.testing.assert_close(out.output[b], one.output[0])
        torch.testing.assert_close(out.weights[b], one.weights[0])
        torch.testing.assert_close(out.lse[b], one.lse[0])


def test_padding_makes_no_nan_in_the_gradients_of_a_callable() -> None:
    p = torch.randn(5, 5, requires_grad=True)

    def cosine(q: Tensor, k: Tensor) -> Tensor:
        q, k = q @ p, k @ p
        return (q / q.norm(dim=-1, keepdim=True)) @ (k / k.norm(dim=-1, keepdim=True)).mT

    x = torch.randn(2, 3, 5)
    attention(x, x, x, score=cosine, valid_lens=[2, 3]).square().sum().backward()
    assert p.grad is not None
    assert p.grad.isfinite().all()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyTorch's own
def test_no_shortcut_under_forward_mode_and_transforms(no_core: None) -> None:
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    assert plan(q, k, v).route == "sdpa"

    def f(q: Tensor, impl: str = "auto") -> Tensor:
        return attention(q, k, v, impl=impl)

    for impl in ("auto", "reference"):
        out, tangent = torch.func.jvp(lambda q, impl=impl: f(q, impl), (q,), (torch.ones_like(q),))
        expected = torch.func.jvp(lambda q: f(q, "reference"), (q,), (torch.ones_like(q),))
        torch.testing.assert_close((out, tangent), expected)
    twice = torch.func.grad(
        lambda q: torch.func.grad(lambda q: f(q).square().sum())(q).square().sum()
    )
    assert twice(q).isfinite().all()


def test_a_callable_with_parameters_under_autocast() -> None:
    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return self.linear(q) @ k.mT

    layer, x = Attention(Score()), torch.randn(2, 3, 4)
    expected = layer(x, x)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x, x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("score", [Gaussian, Cosine])
def test_autocast_does_not_round_scales(score: Any) -> None:
    x = torch.randn(2, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        number = attention(x, x, x, score=score(3.0199), return_lse=True).lse
        tensor = attention(x, x, x, score=score(torch.tensor(3.0199)), return_lse=True).lse
    torch.testing.assert_close(number, tensor)


def test_heads_take_no_mask_of_three_axes() -> None:
    x = torch.randn(2, 5, 16)
    with pytest.raises(ValueError, match=r"pass mask\[:, None\]"):
        MultiHeadAttention(16, 2)(x, mask=torch.ones(2, 5, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"pass mask\[:, None\]"):
        MultiHeadAttention(16, 2)(x, mask=Causal() & torch.ones(2, 5, 5, dtype=torch.bool))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: attention(x, x, x, score=Gaussian(0)), ValueError, "sigma must be > 0, got 0"),
        (lambda x: attention(x, x, x, score=Cosine(0.0)), ValueError, "tau must be > 0"),
        (lambda x: attention(x, x, x, score=Laplace(-1.0)), ValueError, "sigma must be > 0"),
        (lambda x: masked_softmax(x.long()), TypeError, "X is int64"),
        (lambda x: masked_softmax(x[0, 0]), ValueError, r"of shape \(4,\)"),
        (lambda x: masked_softmax(x.numpy()), TypeError, "expected a PyTorch tensor"),
    ],
)
def test_mistakes_are_named(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(torch.randn(2, 3, 4))


def test_concat_for_fewer_key_heads_is_refused() -> None:
    q, k = torch.randn(1, 4, 3, 5), torch.randn(1, 2, 7, 5)
    score = Concat(torch.randn(4, 8, 10), torch.randn(4, 8))
    with pytest.raises(ValueError, match=r"Concat.W has shape \(4, 8, 10\): its leading"):
        attention(q, k, k, score=score)


def test_integers_are_refused_under_autocast_too() -> None:
    x = torch.ones(2, 3, 4, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match="query is int64"):
        attention(x, x, x)


def test_a_value_of_batch_0() -> None:
    assert attention(torch.ones(1, 3, 5), torch.ones(1, 4, 5), torch.ones(0, 4, 5)).shape == (
        0,
        3,
        5,
    )


def test_numbers_of_numpy_and_large_ones() -> None:
    x = np.random.randn(2, 4, 3)
    window = Window(np.int64(1), np.int64(0))  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        attention(x, x, x, mask=window), attention(x, x, x, mask=Window(1, 0))
    )
    np.testing.assert_array_equal(attention(x, x, x, valid_lens=2**70), attention(x, x, x))
    np.testing.assert_array_equal(attention(x, x, x, valid_lens=-(2**70)), 0 * x)
    Attention("additive", hidden=np.int64(3), dropout=np.float32(0.1))  # type: ignore[arg-type]


def test_a_first_call_that_fails_fixes_no_sizes() -> None:
    layer = Attention("additive", hidden=8)
    with pytest.raises(ValueError, match="valid_lens has shape"):
        layer(torch.randn(2, 3, 4), torch.randn(2, 5, 4), valid_lens=[1, 2, 3])
    layer(torch.randn(2, 3, 6), torch.randn(2, 5, 4), valid_lens=[1, 2])


def test_a_first_call_in_inference_mode_leaves_parameters_that_train() -> None:
    layer, x = Attention("additive", hidden=8), torch.randn(2, 3, 4)
    with torch.inference_mode():
        layer(x, x)
    layer(x, x).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_two_threads_at_the_first_call() -> None:
    x = torch.randn(2, 3, 64)
    for _ in range(20):
        layer, outputs = Attention("additive", hidden=64), []
        barrier = threading.Barrier(4)

        def work(layer: Attention = layer, outputs: list[Tensor] = outputs) -> None:
            barrier.wait()  # noqa: B023
            outputs.append(layer(x, x))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for y in outputs:  # MKL's product of so few rows depends on the thread, by rounding
            torch.testing.assert_close(y, layer(x, x))


def test_plan_takes_what_attention_takes(no_core: None) -> None:
    x = torch.randn(1, 2, 3, 4)
    assert plan(x, x, x, return_weights=True, dropout_seed=3).route == "sdpa"


def test_a_causal_mask_can_be_printed_and_made_again() -> None:
    assert repr(Causal("end")) == "Causal(align='end', offset=None)"
    assert isinstance(eval(repr(Causal("end", 3))), Causal)


def test_outputs_of_numpy_can_be_written_to() -> None:
    out = attention(np.ones((1, 3, 4)), np.ones((1, 5, 4)), np.ones((2, 5, 4)), return_weights=True)
    out.output[:] = 0
    out.weights[:] = 0
    assert MultiHeadAttention(8, 2, score="gaussian", sigma=2.0).attention.score is Gaussian
