"""A call writes to no input of any layout and gives the same bits every time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import (
    Additive,
    GATv2,
    Gaussian,
    Laplace,
    ScaledDot,
    attention,
    plan,
)
from helpers.samples import PAIRS, gradients, leaves, make_score, normal

pytestmark = pytest.mark.sample

B, T_Q, T_K, D, D_V = 2, 3, 7, 5, 11


@pytest.fixture
def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return normal(B, T_Q, D), normal(B, T_K, D), normal(B, T_K, D_V)


def of(framework: str, *xs: np.ndarray) -> list[Any]:
    return [torch.tensor(x) if framework == "torch" else x for x in xs]


ONE_OF_EACH_PAIR = pytest.mark.parametrize("name", PAIRS)


@ONE_OF_EACH_PAIR
def test_numpy_inputs_are_never_written_to(arrays: Any, name: str) -> None:
    """A call takes read-only inputs of any strides; a write would raise."""
    q, k, v = arrays
    score = make_score(name)
    mask, lengths = normal(B, T_Q, T_K) > -0.5, np.array([4, 7])
    for x in (q, k, v, mask, lengths, *score.tensors().values()):
        x.setflags(write=False)
    expected = attention(q, k, v, score=score, mask=mask, valid_lens=lengths)
    strided = np.repeat(q, 2, axis=-1)[..., ::2]
    backwards = np.ascontiguousarray(k[..., ::-1, :])[..., ::-1, :]
    turned = np.asfortranarray(v)
    assert not any(x.flags.c_contiguous for x in (strided, backwards, turned))
    mask = np.ascontiguousarray(mask[..., ::-1])[..., ::-1]
    found = attention(strided, backwards, turned, score=score, mask=mask, valid_lens=lengths)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@ONE_OF_EACH_PAIR
def test_torch_inputs_are_never_written_to(arrays: Any, name: str) -> None:
    score, inputs = leaves(make_score(name), *arrays)
    mask, lengths = torch.tensor(normal(B, T_Q, T_K) > -0.5), torch.tensor([4, 7])
    everything = [*inputs, mask, lengths]
    before = [x.detach().numpy().tobytes() for x in everything]
    versions = [x._version for x in everything]
    options = {"mask": mask, "valid_lens": lengths, "dropout": 0.2, "dropout_seed": 3}
    out = attention(*inputs[:3], score=score, return_lse=True, **options)
    gradients(out, inputs)
    assert [x.detach().numpy().tobytes() for x in everything] == before
    assert [x._version for x in everything] == versions

    q, k, v = (x.detach() for x in inputs[:3])
    strided = q.repeat_interleave(2, -1)[..., ::2]
    turned = k.mT.contiguous().mT
    assert not strided.is_contiguous()
    assert not turned.is_contiguous()
    expected = attention(q, k, v[:1].expand(B, -1, -1).contiguous(), score=score, **options)
    found = attention(strided, turned, v[:1].expand(B, -1, -1), score=score, **options)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_torch_takes_numpy_masks_of_any_strides_and_read_only() -> None:
    q, k, v = of("torch", normal(B, T_Q, D), normal(B, T_K, D), normal(B, T_K, D_V))
    mask, lengths = normal(B, T_Q, T_K) > -0.5, np.array([7, 4])
    expected = attention(q, k, v, mask=torch.tensor(mask), valid_lens=torch.tensor(lengths))
    backwards = np.ascontiguousarray(mask[..., ::-1])[..., ::-1]
    swapped = np.ascontiguousarray(lengths[::-1])[::-1]
    for m, n in [(mask, lengths), (backwards, swapped)]:
        m.setflags(write=False)
        n.setflags(write=False)
        assert torch.equal(attention(q, k, v, mask=m, valid_lens=n), expected)


# Determinism


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# Scores without projections: PyTorch computes projections as matrix products, and on some
# processors their last bits depend on the number of threads.
PROJECTED = {
    "ScaledDot": ScaledDot(),
    "Gaussian": Gaussian(2.0),
    "Laplace": Laplace(2.0),
    "Additive": Additive(None, None, normal(31).astype("float32")),
    "GATv2": GATv2(None, None, normal(31).astype("float32")),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", PROJECTED)
def test_same_bits_whatever_the_number_of_threads(name: str, masked: bool, threads: None) -> None:
    """Results have the same bits at any number of threads; the call is large enough for several."""
    arrays = [normal(3, t, 31).astype("float32") for t in (167, 231, 231)]
    mask = normal(167, 231) > -1 if masked else None

    def run() -> list[torch.Tensor]:
        given, inputs = leaves(PROJECTED[name], *arrays)
        out = attention(
            *inputs[:3],
            score=given,
            mask=mask,
            dropout=0.1,
            dropout_seed=5,
            return_lse=True,
            impl="fused",
        )
        return [out.output, out.lse, *gradients(out, inputs)]

    runs = []
    for n in (1, 2, 1):
        torch.set_num_threads(n)
        runs.append(run())
    for first, *others in zip(*runs, strict=True):
        assert all(torch.equal(first, x) for x in others)


def test_sdpa_gives_the_same_bits_whatever_the_threads(threads: None, no_core: None) -> None:
    q, k, v = (torch.tensor(normal(3, t, 31), dtype=torch.float32) for t in (257, 521, 521))
    assert plan(q, k, v).route == "sdpa"
    outputs = []
    for n in (1, 2, 1):
        torch.set_num_threads(n)
        outputs.append(attention(q, k, v))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
