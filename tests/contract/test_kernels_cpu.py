"""The wrapper of the C++ core takes arrays of any layout and of size 0."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import Additive, Causal, Lengths, attention
from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels import cpu
from helpers import machine
from helpers.by_pair import by_pair
from helpers.samples import NAMES, PAIRS, make_score, normal

pytestmark = [pytest.mark.sample, machine.needs_core]

B, T_Q, T_K, D, D_V = 2, 3, 7, 5, 11
SCORES = by_pair("name", NAMES)
ONE_OF_EACH_PAIR = pytest.mark.parametrize("name", PAIRS)


def unaligned(x: np.ndarray) -> np.ndarray:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    made = raw[1:].view(x.dtype).reshape(x.shape)
    made[...] = x
    assert not made.flags.aligned
    return made


def field(x: np.ndarray) -> np.ndarray:
    """Return x as a field of packed records: its strides are no multiples of its item size."""
    records = np.zeros(x.shape[:-1], np.dtype([("tag", "u1"), ("x", x.dtype, x.shape[-1:])]))
    records["x"] = x
    return records["x"]


LAYOUTS: dict[str, Any] = {
    "unaligned": unaligned,
    "fields": field,
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "backwards": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    "backwards features": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    "Fortran": np.asfortranarray,
    "every other": lambda x: np.repeat(np.repeat(x, 2, 0), 2, 2)[::2, :, ::2],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@ONE_OF_EACH_PAIR
def test_layouts(name: str, layout: str) -> None:
    score = make_score(name)
    plain = [normal(B, t, d) for t, d in ((T_Q, D), (T_K, D), (T_K, D_V))]
    if layout == "broadcast":
        plain = [np.repeat(x[:1], B, 0) for x in plain]
    arranged = [LAYOUTS[layout](x) for x in plain]
    options = {"score": score, "mask": Causal("end"), "return_weights": True, "impl": "fused"}
    for one, other in zip(
        attention(*arranged, **options)[:2], attention(*plain, **options)[:2], strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("lead", "queries", "keys", "d", "d_v"),
    [
        ((0,), 3, 7, 5, 2), ((2, 0), 3, 7, 5, 2), ((2,), 0, 7, 5, 2), ((2,), 3, 0, 5, 2),
        ((2,), 3, 7, 0, 2), ((2,), 3, 7, 5, 0), ((), 0, 0, 5, 2), ((1, 1), 1, 1, 1, 1),
    ],
)  # fmt: skip
@SCORES
def test_sizes_of_nothing(
    name: str, lead: tuple[int, ...], queries: int, keys: int, d: int, d_v: int, framework: str
) -> None:
    to = torch.tensor if framework == "torch" else np.asarray
    arrays = [to(normal(*lead, *shape)) for shape in ((queries, d), (keys, d), (keys, d_v))]
    score = make_score(name, d=d).map(to)
    options: dict[str, Any] = {"score": score, "return_weights": True, "return_lse": True}
    for masking in ({}, {"mask": Causal("end")}):
        if framework == "torch":
            arrays = [x.requires_grad_() for x in arrays]
        fused, reference = (
            attention(*arrays, **options, **masking, impl=i) for i in ("fused", "reference")
        )
        for one, other in zip(fused, reference, strict=True):
            assert one.shape == other.shape
            torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other))
        if framework == "torch":
            found = [torch.autograd.grad(x.output.sum(), arrays) for x in (fused, reference)]
            for one, other in zip(*found, strict=True):
                torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@SCORES
def test_dtypes(name: str, dtype: str) -> None:
    score = make_score(name).map(lambda x: x.astype(dtype))
    arrays = [normal(B, t, D).astype(dtype) for t in (T_Q, T_K, T_K)]
    options = {"score": score, "valid_lens": [4, 7], "return_weights": True, "return_lse": True}
    fused, reference = (attention(*arrays, **options, impl=i) for i in ("fused", "reference"))
    tolerance = {"float16": 4e-3, "float32": 2e-6, "float64": 1e-13}[dtype]
    for one, other in zip(fused, reference, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(
            one.astype(float), other.astype(float), rtol=tolerance, atol=tolerance
        )


def test_parameters_wider_than_the_tensors_decide_what_is_computed_in() -> None:
    q, k, v = (normal(B, t, D).astype("float32") for t in (T_Q, T_K, T_K))
    f = Additive(None, None, np.ones(D, np.float32)).lower(None, q, k)  # type: ignore[arg-type]
    output, stats = np.zeros((B, T_Q, D), np.float32), np.zeros((B, 2, T_Q))
    operands = Operands(f.a, f.b, np.ones(D), value=v)
    cpu.forward(operands, Settings("tanh", 1.0, 1, 0.0, 1, (B,)), Results(output, stats), 1)
    s = np.tanh(q[:, :, None].astype(float) + k[:, None].astype(float)).sum(-1)
    np.testing.assert_allclose(stats.sum(1), np.log(np.exp(s).sum(-1)), rtol=1e-13)


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 + 5, np.int32(7), np.uint8(200)])
def test_dropout_seeds(seed: Any) -> None:
    arrays = [normal(B, t, D) for t in (T_Q, T_K, T_K)]
    fused, reference = (
        attention(*arrays, dropout=0.5, dropout_seed=seed, impl=i) for i in ("fused", "reference")
    )
    np.testing.assert_allclose(fused, reference, rtol=1e-12, atol=1e-14)


def test_numpy_uses_the_cpus_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = [], cpu.forward

    def spy(*args: Any) -> None:
        seen.append(args[-1])
        real(*args)

    monkeypatch.setattr(cpu, "forward", spy)
    attention(*(normal(B, t, D) for t in (T_Q, T_K, T_K)), mask=Lengths(3), impl="fused")
    expected = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert seen == [expected]


def test_weights_of_huge_scores_sum_to_one() -> None:
    """Weights of scores near 1e5 sum to 1 within 1e-6; the log-sum-exp is off by up to 0.004."""
    q = np.full((1, 1, 1), 300, np.float32)
    k = np.linspace(299, 300, 7, dtype=np.float32)[None, :, None]
    exact = attention(q.astype(float), k.astype(float), k.astype(float), return_weights=True)
    found = attention(q, k, k, return_weights=True, impl="fused")
    np.testing.assert_allclose(found.weights.sum(), 1.0, rtol=1e-6)
    np.testing.assert_allclose(found.weights, exact.weights, rtol=3e-2, atol=1e-6)
