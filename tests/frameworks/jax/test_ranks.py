"""Keys on four devices, inside shard_map: results and gradients are those of one device."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from anyscore import (
    Additive,
    ALiBi,
    Causal,
    Contiguous,
    GATv2,
    Gaussian,
    Keys,
    Laplace,
    Relative,
    ScaledDot,
    Sequences,
    Uneven,
    Window,
    Zigzag,
    attention,
    log_sum_exp,
    plan,
)
from anyscore.functional.layouts import Layout
from anyscore.jax import Attention, MultiHeadAttention
from helpers.samples import normal

RANKS, TOKENS, BUDGET = 4, 32, 1e-12
KINDS: dict[str, AxisType] = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
MESHES = {n: jax.make_mesh((RANKS,), ("cp",), axis_types=(kind,)) for n, kind in KINDS.items()}
SHARDED, WHOLE = P(None, None, "cp"), P()
PER_HEAD = jnp.array([0.5, 0.2])
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": Causal("end")},
    "window": {"mask": Window(5, 2, align="end")},
    "lengths": {"valid_lens": jnp.array([20, 0])},
    "keys": {"mask": Causal("end") & Keys(jnp.arange(TOKENS) % 3 > 0)},
    "documents": {"mask": Sequences([0, 10, 11, TOKENS]) & Causal()},
    "alibi": {"mask": Causal("end"), "bias": ALiBi(PER_HEAD, align="end")},
    "relative, cap": {"bias": Relative(jnp.asarray(normal(2, 11)), align="end"), "softcap": 3.0},
    "sink": {"mask": Causal("end"), "sink": PER_HEAD},
    "sigmoid": {"mask": Causal("end"), "normalizer": "sigmoid"},
    "dropout": {"dropout": 0.4, "dropout_seed": 7},
}
LAYOUTS: dict[str, Layout] = {"contiguous": Contiguous("cp"), "zigzag": Zigzag("cp")}
Arrays = tuple[jax.Array, ...]


def arrays(queries: int = TOKENS, kv_heads: int = 2) -> Arrays:
    """Return queries, keys, values and the parameters of `Additive`."""
    shapes = (2, 2, queries, 6), (2, kv_heads, TOKENS, 6), (2, kv_heads, TOKENS, 5), (8, 6), (8,)
    return tuple(jnp.asarray(normal(*shape)) for shape in shapes)


def call(q: Any, k: Any, v: Any, w_q: Any, w: Any, score: str = "additive", **options: Any) -> Any:
    """Return the output of a call, and the log-sum-exp of the softmax."""
    scores: dict[str, Callable[[], Any]] = {
        "additive": lambda: Additive(w_q, 2 * w_q, w),
        "gatv2": lambda: GATv2(w_q, 2 * w_q, w),
        "laplace": lambda: Laplace(2.0),
        "gaussian": lambda: Gaussian(1.5),
        "scaled_dot": ScaledDot,
    }
    if options.get("normalizer"):
        return (attention(q, k, v, score=scores[score](), **options),)
    found = attention(q, k, v, score=scores[score](), return_lse=True, **options)
    return found.output, found.lse


def across(
    args: Arrays, queries: Layout | None, keys: Layout, mesh: str, checked: bool, **options: Any
) -> Any:
    """Return the results of `call` on four devices, in the order of positions."""
    of_queries = WHOLE if queries is None else SHARDED
    run = partial(call, across=keys if queries is keys else (queries, keys), **options)
    results = (of_queries,) if options.get("normalizer") else (of_queries, of_queries)
    mapped = jax.shard_map(
        run, mesh=MESHES[mesh], check_vma=checked,
        in_specs=(of_queries, SHARDED, SHARDED, WHOLE, WHOLE), out_specs=results,
    )  # fmt: skip
    q, k, v, *parameters = args
    q = q if queries is None else q[..., order(queries, q), :]
    k, v = (x[..., order(keys, x), :] for x in (k, v))
    if mesh == "explicit":
        specs = of_queries, SHARDED, SHARDED
        q, k, v = (
            jax.sharding.reshard(x, NamedSharding(MESHES[mesh], s))
            for x, s in zip((q, k, v), specs, strict=True)
        )
    found = mapped(q, k, v, *parameters)
    if queries is None:
        return found
    whole = NamedSharding(MESHES[mesh], P())
    found = [jax.sharding.reshard(y, whole) if mesh == "explicit" else y for y in found]
    back = np.argsort(order(queries, args[0]))
    return [y.take(back, axis=2) for y in found]


def order(layout: Layout, x: jax.Array) -> list[int]:
    return layout.order(RANKS, x.shape[-2])


def results(run: Callable[[Arrays], Any], args: Arrays) -> list[np.ndarray[Any, Any]]:
    """Return outputs, and the gradients of a loss of them."""

    def loss(args: Arrays) -> tuple[Any, Any]:
        found = run(args)
        output, *log_sums = (jnp.where(jnp.isfinite(y), y, 0.0) for y in found)
        weights = jnp.arange(output.size).reshape(output.shape) / output.size
        return (jnp.sin(output) * weights).sum() + sum((y**2).sum() for y in log_sums), found

    gradients, found = jax.jit(jax.grad(loss, has_aux=True))(args)
    return [np.asarray(y) for y in (*found, *gradients)]


def compare(
    args: Arrays, queries: Layout | None, keys: Layout, mesh: str = "auto", checked: bool = True,
    **options: Any,
) -> None:  # fmt: skip
    expected = results(lambda args: call(*args, **options), args)
    found = results(lambda args: across(args, queries, keys, mesh, checked, **options), args)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=BUDGET, atol=BUDGET)


@pytest.mark.parametrize("option", OPTIONS)
def test_ring(option: str) -> None:
    layout = LAYOUTS["zigzag"]
    compare(arrays(), layout, layout, **OPTIONS[option])


@pytest.mark.parametrize("option", ["causal", "alibi", "sigmoid", "dropout"])
def test_keys_stay(option: str) -> None:
    compare(arrays(7), None, LAYOUTS["contiguous"], **OPTIONS[option])


@pytest.mark.parametrize("option", ["causal", "lengths", "dropout"])
def test_queries_are_gathered(option: str) -> None:
    compare(arrays(8), LAYOUTS["zigzag"], LAYOUTS["contiguous"], **OPTIONS[option])


@pytest.mark.parametrize("score", ["gatv2", "laplace", "gaussian", "scaled_dot"])
def test_scores(score: str) -> None:
    layout = LAYOUTS["contiguous"]
    compare(arrays(), layout, layout, score=score, **OPTIONS["causal"])


@pytest.mark.parametrize(
    ("how", "stays"),
    [
        ("reference", False), ("fewer key heads", False), ("explicit", False), ("explicit", True),
        ("untyped", False), ("untyped", True),
    ],
)  # fmt: skip
def test_other_ways(how: str, stays: bool) -> None:
    """The reference computes blocks; gradients without types of shard_map; typed meshes."""
    layout = LAYOUTS["contiguous" if how == "reference" else "zigzag"]
    args = arrays(7 if stays else TOKENS, kv_heads=1 if how == "fewer key heads" else 2)
    options = OPTIONS["causal"] | ({"impl": "reference"} if how == "reference" else {})
    mesh = "explicit" if how == "explicit" else "auto"
    compare(args, None if stays else layout, layout, mesh, how != "untyped", **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_dtypes_beside_an_axis_of_the_batch(dtype: str) -> None:
    """Errors are at most twice those of one device, beside float64; root mean squares."""
    mesh = jax.make_mesh((2, 2), ("data", "cp"), axis_types=(AxisType.Auto,) * 2)
    specs = (P("data", None, "cp"),) * 3 + (WHOLE,) * 2
    narrow = tuple(x.astype(dtype) for x in arrays())

    def shared(args: Arrays) -> Any:
        run = partial(call, mask=Causal(), across="cp")
        return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=(specs[0],) * 2)(*args)

    exact = results(lambda x: call(*x, mask=Causal()), tuple(x.astype("float64") for x in narrow))
    alone = results(lambda x: call(*x, mask=Causal()), narrow)
    found = results(shared, narrow)
    for true, one, other in zip(exact, alone, found, strict=True):
        errors = (((x.astype("float64") - true) ** 2).mean() ** 0.5 for x in (other, one))
        assert next(errors) <= 2 * next(errors)


def mapped(run: Callable[..., Any], specs: Any, out: Any = SHARDED) -> Callable[..., Any]:
    return jax.jit(jax.shard_map(run, mesh=MESHES["auto"], in_specs=specs, out_specs=out))


def test_a_string_is_an_axis() -> None:
    """across="cp" is Contiguous("cp"); lengths that no rank but one has."""
    q, k, v, *_ = arrays()
    one = attention(q, k, v, score=Laplace(2.0), valid_lens=3)
    run = partial(attention, score=Laplace(2.0), valid_lens=3, across="cp")
    np.testing.assert_allclose(mapped(run, SHARDED)(q, k, v), one, rtol=BUDGET, atol=BUDGET)


def test_log_sum_exp() -> None:
    q, k, *_ = arrays()
    one = log_sum_exp(q, k, score=Laplace(2.0), mask=Causal())
    run = partial(log_sum_exp, score=Laplace(2.0), mask=Causal(), across="cp")
    np.testing.assert_allclose(mapped(run, SHARDED)(q, k), one, rtol=BUDGET, atol=BUDGET)


@pytest.mark.parametrize("name", LAYOUTS)
def test_shards_positions_and_gathered_tokens(name: str) -> None:
    layout, places = LAYOUTS[name], jnp.asarray(LAYOUTS[name].order(RANKS, TOKENS))
    x = jnp.asarray(normal(2, 2, TOKENS, 6))

    def run(whole: jax.Array) -> Any:
        part = layout.shard(whole)
        gathered = layout.gather(part)
        return part, layout.positions(part), (gathered - whole)[None]

    part, positions, difference = mapped(run, WHOLE, (SHARDED, P("cp"), P("cp")))(x)
    np.testing.assert_array_equal(part, x[..., places, :])
    np.testing.assert_array_equal(positions, places)
    assert not difference.any()


def test_gradients_of_gathered_tokens_are_sums() -> None:
    layout, x = LAYOUTS["zigzag"], jnp.asarray(normal(2, 2, TOKENS, 6))
    weights = jnp.asarray(normal(*x.shape))

    def loss(part: jax.Array) -> jax.Array:
        return jax.lax.psum((layout.gather(part) * weights).sum(), "cp")

    found = jax.grad(lambda x: mapped(loss, SHARDED, WHOLE)(x))(x)
    np.testing.assert_allclose(found, RANKS * weights[..., order(layout, x), :], rtol=BUDGET)


def test_plan() -> None:
    said = []

    def run(q: jax.Array) -> jax.Array:
        said.append(plan(q, q, q, score=Laplace(2.0), across="cp"))
        return q

    mapped(run, SHARDED)(arrays()[0])
    assert said[0].route == "cpu"
    assert said[0].reason.endswith("keys pass around a ring of 4 ranks")


def test_forward_memory_is_a_ring() -> None:
    """No device holds all keys: the program gathers nothing."""
    run = partial(attention, score=Laplace(2.0), mask=Causal(), across=LAYOUTS["zigzag"])
    text = mapped(run, SHARDED).lower(*arrays()[:3]).compile().as_text()
    assert "collective-permute" in text
    assert "all-gather" not in text


@pytest.mark.parametrize("heads", [False, True], ids=["attention", "multi-head"])
def test_layer(heads: bool) -> None:
    """The gradients of parameters are summed over the ranks by shard_map. Padding is NaN."""
    layout, places = LAYOUTS["zigzag"], jnp.asarray(LAYOUTS["zigzag"].order(RANKS, TOKENS))
    x, valid_lens = arrays()[0][:, 0], 13
    layer: Any = Attention("additive", hidden=8, d_q=6, d_k=6, dtype="float64")
    if heads:
        layer = MultiHeadAttention(6, 2, score="laplace", dtype="float64")
        x = x.at[:, valid_lens:].set(jnp.nan)
    params = layer.init(jax.random.key(0))

    def loss(params: Any, shared: bool) -> jax.Array:
        run = partial(layer.apply, valid_lens=valid_lens)
        if not shared:
            return (run(params, x, x)[:, :valid_lens] ** 2).sum()
        specs = WHOLE, P(None, "cp"), P(None, "cp")
        y = x[:, places]
        y = mapped(partial(run, across=layout), specs, P(None, "cp"))(params, y, y)
        return (jnp.where(places[:, None] < valid_lens, y, 0.0) ** 2).sum()

    one, other = (
        jax.jit(jax.value_and_grad(partial(loss, shared=shared)))(params) for shared in (0, 1)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=BUDGET, atol=BUDGET), other, one)


def test_page(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[3] / "docs" / "ranks.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"<!-- four devices of JAX -->\n```py\n(.*?)```", text, re.S)
    exec(script, {})
    assert capsys.readouterr().out == "the error is below 1e-5: True\n"


LAPLACE = {"score": Laplace(2.0)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"across": "other"}, r"the axis 'other', which is no axis here: .* inside jax.shard_map"),
        ({"across": Contiguous(3)}, "a layout is over 3, expected the name of an axis"),
        ({"across": Uneven("cp", [2, 10, 10, 10])}, "Uneven gives 4 ranks pieces of different len"),
        ({"across": Zigzag("cp", 30)}, "Zigzag gives 4 ranks pieces of different lengths. In JAX"),
        ({"across": Contiguous("cp", 40)}, "key has 8 tokens on each rank, and the layout gives"),
        (
            {"across": "cp", "bias": jnp.ones((TOKENS, TOKENS))},
            "expected 1 or 8 rows, those of this",
        ),
        ({"across": "cp", "normalizer": "sparsemax"}, "across does not take normalizer"),
        ({"across": "cp", "return_weights": True}, "across does not take the matrix"),
    ],
)
def test_errors(options: dict[str, Any], words: str) -> None:
    q, k, v, *_ = arrays()
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=words):
        mapped(partial(attention, **LAPLACE, **options), SHARDED)(q, k, v)


def test_outside_of_shard_map() -> None:
    q, k, v, *_ = arrays()
    with pytest.raises(ValueError, match=r"call attention inside jax\.shard_map"):
        attention(q, k, v, **LAPLACE, across="cp")


@pytest.mark.parametrize("order", ["reverse", "forward"])
def test_derivatives_that_are_refused(order: str) -> None:
    q, k, v, *_ = arrays()

    def loss(q: jax.Array) -> jax.Array:
        return mapped(partial(attention, **LAPLACE, across="cp"), SHARDED)(q, k, v).sum()

    if order == "reverse":
        with pytest.raises(NotImplementedError, match="no second derivatives"):
            jax.grad(lambda q: jax.grad(loss)(q).sum())(q)
    else:
        with pytest.raises(TypeError, match="forward-mode"):
            jax.jit(lambda q: jax.jvp(loss, (q,), (q,)))(q)
