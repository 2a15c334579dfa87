"""The Pallas kernels lower for absent devices: CUDA by Triton, TPU by Mosaic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.triton import lowering
from jax.sharding import AxisType, PartitionSpec

from anyscore import Additive, attention, plan
from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels import tried
from anyscore.kernels.pallas import attention as pallas
from anyscore.kernels.pallas.attention import StaticArgs
from anyscore.score.pairs import Pair
from frameworks.jax.pallas.pallas_calls import PAIRS, equations
from helpers.samples import normal

LEAD, T_Q, T_K, D, D_V = (2, 4), 67, 131, 19, 7
CUDA, TPU, CORE = "xla.gpu.triton", "tpu_custom_call", "anyscore_"
TILE, RECIPROCAL = (64, 32), "elementwise_inline_asm_p"


def operands(dtype: Any, dropout: float) -> Operands:
    """Return the types of all operands, with grouped heads, bounds and booleans."""
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {
        "a": ((*LEAD, T_Q, D), dtype), "b": ((2, 2, T_K, D), dtype),
        "weight": ((1, 4, D), dtype), "key_bias": ((2, 1, T_K), dtype),
        "value": ((1, 2, T_K, D_V), dtype),
        "start": ((2, 1, T_Q), np.int32), "mask": ((1, 4, 1, T_K), bool),
    }  # fmt: skip
    if dropout:
        words = (1, 1, 2), np.uint32
        shapes |= {"seed": words, "counter": (LEAD, np.uint32), "origin": words}
    return Operands(**{name: jax.ShapeDtypeStruct(*x) for name, x in shapes.items()})


def lowered(
    target: str,
    pair: Pair,
    dtype: Any = np.float32,
    dropout: float = 0.0,
    cap: float = 0.0,
    normalizer: int = 0,
) -> list[str]:
    """Return the lowered forward and backward for a platform, with scores unless with dropout."""
    calls = calls_of(target, pair, dtype, dropout, cap, normalizer)
    return [text(f, args, target) for f, args in calls]


def calls_of(
    target: str, pair: Pair, dtype: Any, dropout: float, cap: float, normalizer: int
) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return forward and backward, and the types of their arguments."""
    settings = Settings(
        pair.name, 0.5, 2, dropout, 8, LEAD, "tanh" if cap else "", cap, scores=not dropout,
        normalizer=normalizer,
    )  # fmt: skip
    s, x = StaticArgs(settings, pair, (target,), tried.is_switched_on()), operands(dtype, dropout)
    sums = np.float64 if dtype == np.float64 else np.float32
    stats = jax.ShapeDtypeStruct((*LEAD, 2, T_Q), sums)
    scores = None if dropout else jax.ShapeDtypeStruct((*LEAD, T_Q, T_K), sums)
    results = Results(jax.ShapeDtypeStruct((*LEAD, T_Q, D_V), sums), stats, scores)
    return [
        (lambda x: pallas.forward(x, s), (x,)),
        (lambda x, *rest: pallas.backward(x, s, *rest), (x, results, results)),
    ]


def text(function: Callable[..., Any], args: Any, *platforms: str) -> str:
    return fresh(function).trace(*args).lower(lowering_platforms=platforms).as_text()


def fresh(function: Callable[..., Any]) -> Any:
    """Return a compiled function that JAX's cache does not know."""
    return jax.jit(lambda *args: function(*args))


@pytest.fixture(autouse=True)
def _verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify each program for Triton: Pallas leaves this to a machine with a GPU."""
    made = lowering.lower_jaxpr_to_triton_module

    def verified(*args: Any, **options: Any) -> Any:
        found = made(*args, **options)
        assert found.module.operation.verify()
        return found

    monkeypatch.setattr(lowering, "lower_jaxpr_to_triton_module", verified)


def loops(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Counter[str]]:
    """Return the operations on whole tiles in each innermost loop that has such operations."""
    found = []
    for loop in equations(fresh(function).trace(*args).jaxpr.jaxpr):
        if loop.primitive.name not in ("scan", "while"):
            continue
        body = list(equations(loop.params["jaxpr" if "jaxpr" in loop.params else "body_jaxpr"]))
        shapes = [(x, y.aval.shape) for x in body for y in x.outvars if hasattr(y.aval, "shape")]
        names = Counter(x.primitive.name for x, shape in shapes if shape == TILE)
        if names and not any(x.primitive.name in ("scan", "while") for x in body):
            found.append(names)
    return found


@pytest.mark.weekly
def test_tanh_takes_reciprocals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops over features have no exponential: an element takes a fourth or half a reciprocal.

    One score takes 19 operations for four features, or 22 clamped, without reckoning that a product
    and a sum are one instruction. Each kernel has one more loop, for tanh itself.
    """
    monkeypatch.setenv(tried.SWITCH, "1")
    forward, backward = (
        loops(*call) for call in calls_of("cuda", PAIRS["tanh"], np.float32, 0.0, 0.0, 0)
    )
    slow = {"tanh", "exp", "exp2", "log", "div", "logistic", "expm1"}
    for found, kernels in ((forward, 1), (backward, 2)):
        quick = [x for x in found if x[RECIPROCAL]]
        scores = sorted((x[RECIPROCAL], x.total()) for x in quick if not x["sub"])
        assert scores == [(1, 19)] * kernels + [(2, 22)] * kernels
        assert not slow & set().union(*quick)
        of_pairs = [x for x in found if slow & x.keys()]
        assert [x["tanh"] for x in of_pairs] == [1] * len(of_pairs)
    slopes = [x for x in backward if x[RECIPROCAL] and x["sub"]]
    assert [(x[RECIPROCAL], x.total()) for x in slopes] == [(1, 20), (1, 18)]  # of two features


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("pair", PAIRS)
def test_cuda(pair: str, dropout: float) -> None:
    """Each pair lowers with 64 bits and with 32, one with dropout, the other without."""
    wide = (list(PAIRS).index(pair) % 2 == 0) == bool(dropout)
    with jax.enable_x64(wide):
        found = lowered("cuda", PAIRS[pair], dropout=dropout, cap=50 * dropout)
        assert [x.count(CUDA) for x in found] == [1, 2]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.float64])
@pytest.mark.parametrize("pair", ["product", "tanh"])
def test_cuda_dtypes(pair: str, dtype: Any) -> None:
    assert [x.count(CUDA) for x in lowered("cuda", PAIRS[pair], dtype)] == [1, 2]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("normalizer", [1, 2])
def test_cuda_by_a_sigmoid(normalizer: int, wide: bool) -> None:
    with jax.enable_x64(wide):
        found = lowered("cuda", PAIRS["product"], normalizer=normalizer)
        assert [x.count(CUDA) for x in found] == [1, 2]


@pytest.mark.parametrize("pair", ["product", "tanh", "leaky_relu", "squared"])
def test_tpu(pair: str) -> None:
    """Kernels lower for TPUs, no route of `attention`. The sign in |a − b| lowers only on a TPU."""
    with jax.enable_x64(False):
        assert [x.count(TPU) > 0 for x in lowered("tpu", PAIRS[pair])] == [True] * 2


def arrays() -> tuple[jax.Array, ...]:
    shapes = (*LEAD, T_Q, D), (2, 2, T_K, D), (2, 2, T_K, D_V), (5, D), (5, D), (5,)
    return tuple(jnp.asarray(normal(*shape), np.float32) for shape in shapes)


def gradients(*args: jax.Array) -> Any:
    def total(*args: jax.Array) -> jax.Array:
        score = Additive(*args[3:])
        return (attention(*args[:3], score=score, valid_lens=jnp.array([9, 131])) ** 2).sum()

    return jax.grad(total, tuple(range(6)))(*args)


def test_what_computes_is_chosen_when_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU, CUDA lowers to the kernels and the CPU to the core; other platforms raise."""
    args, expected = arrays(), gradients(*arrays())
    assert CORE in text(gradients, args, "cpu")
    monkeypatch.setattr(pallas, "has_device", lambda: True)
    assert plan(*args[:3]).route == "cpu"  # the arrays are on the CPU
    on_cpu, on_cuda = text(gradients, args, "cpu"), text(gradients, args, "cuda")
    assert (CORE in on_cpu, CUDA in on_cpu) == (True, False)
    assert (CORE in on_cuda, on_cuda.count(CUDA)) == (False, 3)
    with pytest.raises(NotImplementedError, match="tpu"):
        text(gradients, args, "tpu")
    for x, y in zip(fresh(gradients)(*args), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    for x, y in zip(gradients(*args), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export takes the definition: JAX does not promise to know these kernels later."""
    monkeypatch.setattr(pallas, "has_device", lambda: True)
    assert CUDA in text(gradients, arrays(), "cuda")
    exported = jax.export.export(fresh(gradients), platforms=["cuda"])(*arrays())
    assert CUDA not in exported.mlir_module()
    assert exported.serialize()


@pytest.mark.parametrize("checked", [True, False])
def test_shard_map(monkeypatch: pytest.MonkeyPatch, checked: bool) -> None:
    monkeypatch.setattr(pallas, "has_device", lambda: True)
    mesh = jax.make_mesh((2, 2), ("batch", "heads"), axis_types=(AxisType.Auto,) * 2)
    spread, whole = PartitionSpec("batch", "heads"), PartitionSpec()

    def call(*args: jax.Array) -> jax.Array:
        return attention(*args[:3], score=Additive(*args[3:]))

    specs = (spread,) * 3 + (whole,) * 3
    mapped = jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=spread, check_vma=checked)

    def total(*args: jax.Array) -> jax.Array:
        return (mapped(*args) ** 2).sum()

    assert text(jax.grad(total, (0, 3)), arrays(), "cuda").count(CUDA) == 3
