"""Keys prepared once give the results and gradients of calls with plain keys."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import (
    Additive,
    Causal,
    Concat,
    Dot,
    Gaussian,
    Keys,
    PreparedKeys,
    Score,
    attention,
    plan,
    prepare_keys,
)
from anyscore.torch import Attention, MultiHeadAttention
from helpers import machine
from helpers.by_pair import by_pair
from helpers.cases import SCORES as CASES
from helpers.cases import WIDTH
from helpers.samples import NAMES, PAIRS, gradients, leaves, make_score, normal
from helpers.table_scores import TABLE
from helpers.transformed import WARNINGS

pytestmark = [pytest.mark.sample, *WARNINGS]
B, H, KV, T_Q, T_K, D, D_V = 2, 4, 2, 3, 7, 5, 11
SCORES = by_pair("name", NAMES)
WITH_A_BIAS = pytest.mark.parametrize("name", [*PAIRS, "Trilinear"])
"""One score of each pair, and one with a key bias."""
IMPLS = pytest.mark.parametrize("impl", ["auto", "reference"])
FRAMEWORKS = pytest.mark.parametrize("framework", ["numpy", "torch"])
MASKS: dict[str, Any] = {
    "none": {},
    "lengths": {"valid_lens": [4, 0]},
    "causal": {"mask": Causal("end") & Keys(normal(B, T_K) > -0.5)},
    "boolean": {"mask": normal(B, 1, T_Q, T_K) > 0},
}
MASK = pytest.mark.parametrize("mask", MASKS)


def arrays(kv: int = KV) -> list[np.ndarray]:
    return [normal(B, H, T_Q, D), normal(B, kv, T_K, D), normal(B, kv, T_K, D_V)]


def same(found: Any, expected: Any) -> None:
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(x), torch.as_tensor(y), rtol=1e-11, atol=1e-12)


@IMPLS
@FRAMEWORKS
@MASK
@SCORES
def test_as_a_call_without(name: str, mask: str, framework: str, impl: str) -> None:
    to = torch.tensor if framework == "torch" else np.asarray
    score = make_score(name).map(to)
    for kv in (H, KV, 1):
        q, k, v = map(to, arrays(kv))
        options = {"score": score, "impl": impl, "dropout": 0.3, "dropout_seed": 1, **MASKS[mask]}
        options |= {"return_weights": True, "return_lse": True}
        prepared = prepare_keys(k, score)
        for query in (q, q[..., :1, :]):
            if query.shape[-2] == 1 and mask == "boolean":
                continue
            same(attention(query, prepared, v, **options), attention(query, k, v, **options))


@pytest.mark.parametrize("case", [name for name in CASES if name != "callable"])
def test_every_score_of_the_table_finds_the_width_of_its_queries(case: str) -> None:
    """Parameters of each head, projections and keys of other widths work with prepared keys."""
    row = CASES[case]
    rng = np.random.default_rng(0)
    score = row.build(row.make(rng, (B, 6), (B, 2)), np.asarray)
    q, k, v = normal(B, 6, T_Q, row.d_q), normal(B, 2, T_K, row.d_k), normal(B, 2, T_K, D_V)
    q, k, v = (x.astype("float32") for x in (q, k, v))
    prepared = prepare_keys(k, score)
    found = attention(q, prepared, v, score=score, valid_lens=[3, 7])
    expected = attention(q, k, v, score=score, valid_lens=[3, 7])
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    assert row.d_q == WIDTH


@IMPLS
@MASK
@SCORES
def test_gradients(name: str, mask: str, impl: str) -> None:
    """Gradients of several steps with prepared keys, parameters' too, are those with plain keys."""
    found = []
    for is_prepared in (True, False):
        score, inputs = leaves(make_score(name), *arrays())
        q, k, v = inputs[:3]
        keys = prepare_keys(k, score) if is_prepared else k
        options = {"score": score, "impl": impl, "return_lse": True, **MASKS[mask]}
        steps = [attention(q * n, keys, v, **options) for n in (1, 2)]
        out = [torch.where(x == -torch.inf, 0.0, x) for s in steps for x in s if x is not None]
        loss = sum(x.square().sum() for x in out)
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        found.append([*first, *gradients([sum(x.square().sum() for x in first)], inputs)])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8)


@machine.needs_core
@FRAMEWORKS
def test_the_core_is_used_and_packs_what_it_wants(framework: str) -> None:
    to = torch.tensor if framework == "torch" else np.asarray
    q, k, v = map(to, arrays())
    for name, packs in (("Additive", True), ("Gaussian", False)):
        score = make_score(name).map(to)
        prepared = prepare_keys(k, score)
        assert (prepared.packed is not None) == packs
        assert plan(q, prepared, v, score=score, valid_lens=3).route == "cpu"


@pytest.mark.parametrize("fill", [np.nan, np.inf])
@WITH_A_BIAS
def test_what_no_query_may_attend_is_not_read(name: str, fill: float) -> None:
    """NaN in keys that `prepare_keys` masks reaches no gradient, not even a parameter's."""
    found = []
    for x in (0.0, fill):
        q, k, v = arrays()
        k[0, :, 4:] = v[0, :, 4:] = x
        score, inputs = leaves(make_score(name), q, k, v)
        prepared = prepare_keys(inputs[1], score, valid_lens=[4, 7])
        out = attention(inputs[0], prepared, inputs[2], score=score, valid_lens=[4, 7])
        found.append([out, *gradients([out], inputs)])
    same(*found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    score = make_score("Additive").map(lambda x: torch.tensor(x, dtype=torch.float32))
    q, k, v = (torch.tensor(x, dtype=torch.float32) for x in arrays())
    outside = prepare_keys(k, score)
    with torch.autocast("cpu", dtype=dtype):
        expected = attention(q, k, v, score=score)
        inside = prepare_keys(k, score)
        for prepared in (inside, outside):
            found = attention(q, prepared, v, score=score)
            assert found.dtype == dtype
            torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02)


def test_without_values() -> None:
    """Keys can be prepared as fake tensors, which hold no values to pack."""
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        q, k, v = (torch.zeros(B, t, D) for t in (T_Q, T_K, T_K))
        score = Additive(None, None, torch.zeros(D))
        assert attention(q, prepare_keys(k, score), v, score=score).shape == (B, T_Q, D)


def test_copies() -> None:
    score, (q, k, v) = make_score("Additive"), arrays()
    prepared = prepare_keys(k, score)
    for other in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        same([attention(q, other, v, score=score)], [attention(q, k, v, score=score)])


@pytest.mark.slow
def test_transforms_and_compilation() -> None:
    score = make_score("Additive").map(torch.tensor)
    q, k, v = map(torch.tensor, arrays(H))

    def f(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        keys = prepare_keys(k, score)
        return attention(q, keys, v[0], score=score, valid_lens=3).square().sum()

    def plain(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v[0], score=score, valid_lens=3).square().sum()

    for of in (f, plain):
        assert of(q[0], k[0]).ndim == 0
    same(*(torch.vmap(torch.func.grad(of, argnums=(0, 1)))(q, k) for of in (f, plain)))
    torch._dynamo.reset()
    same([torch.compile(f, fullgraph=True, backend="aot_eager")(q[0], k[0])], [plain(q[0], k[0])])
    prepared = prepare_keys(k, score)
    step = torch.compile(
        lambda q, keys: attention(q, keys, v, score=score, valid_lens=3),
        fullgraph=True,
        backend="aot_eager",
    )
    same([step(q, prepared)], [attention(q, k, v, score=score, valid_lens=3)])
    torch._dynamo.reset()


# Layers


@by_pair("name", TABLE)
def test_layers(name: str) -> None:
    hidden = 3 if TABLE[name].hidden else None
    layer = Attention(name, hidden=hidden, d_q=D, d_k=D).double()
    q, k, v = map(torch.tensor, arrays())
    prepared = layer.prepare_keys(k)
    for n in ([4, 0], None):
        expected = layer(q, k, v, n), layer.attention_weights
        same([layer(q, prepared, v, n), layer.attention_weights], expected)
    same([layer(q, prepared)], [layer(q, k)])
    parameters = list(layer.parameters())
    if parameters:
        of_step = torch.autograd.grad(layer(q, prepared, v).sum(), parameters)
        same(of_step, torch.autograd.grad(layer(q, k, v).sum(), parameters))


def test_multi_head_layer() -> None:
    layer = MultiHeadAttention(12, H, kv_heads=KV, score="additive")
    x, memory, n = torch.randn(B, T_Q, 12), torch.randn(B, T_K, 12), torch.tensor([4, 0])
    prepared = layer.prepare_keys(memory)
    found = layer(x, prepared, memory, n), layer.attention_weights
    expected = layer(x, memory, memory, n), layer.attention_weights
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    parameters = list(layer.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(found[0].square().sum(), parameters),
        torch.autograd.grad(expected[0].square().sum(), parameters),
        rtol=1e-4,
        atol=1e-5,
    )
    with pytest.raises(ValueError, match="prepared keys are projected already: pass values"):
        layer(x, prepared)


def test_a_layer_without_sizes_cannot_prepare() -> None:
    with pytest.raises(ValueError, match="give the layer d_q= and d_k=, or call it once"):
        Attention("additive", hidden=3).prepare_keys(torch.ones(2, 3, 5))


# Errors


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (lambda q, k, v: prepare_keys(k, lambda q, k: q @ k), TypeError, "for a score object"),
        (lambda q, k, v: prepare_keys([1.0], Dot()), TypeError, "key is a list"),
        (lambda q, k, v: prepare_keys(k[..., 0, 0, 0], Dot()), ValueError, "rank ≥ 2"),
        (
            lambda q, k, v: prepare_keys(k, Dot(), mask=Causal()),
            TypeError,
            "expected Lengths, Interval or Keys, got Causal",
        ),
        (
            lambda q, k, v: prepare_keys(k, make_score("Additive", d=D + 1)),
            ValueError,
            r"Additive.W_k has shape \(3, 6\)",
        ),
        (
            lambda q, k, v: prepare_keys(k, Concat(np.ones((3, 2)), np.ones(3))),
            ValueError,
            "Concat.W has shape",
        ),
        (
            lambda q, k, v: attention(q, prepare_keys(k, Dot()), v, score=Gaussian()),
            ValueError,
            "prepared for the score Dot, got Gaussian",
        ),
        (
            lambda q, k, v: attention(q, prepare_keys(k, Dot()), v, score=lambda q, k: q),
            ValueError,
            "prepared for the score Dot, got <function",
        ),
        (
            lambda q, k, v: attention(q, prepare_keys(k, wide(4)), v, score=wide(3)),
            ValueError,
            "score of width 4, got 3",
        ),
        (
            lambda q, k, v: attention(q, prepare_keys(k, Dot()), v[..., 1:, :]),
            ValueError,
            "key has 7 tokens but value has 6",
        ),
        (
            lambda q, k, v: attention(torch.tensor(q), prepare_keys(k, Dot()), v),
            TypeError,
            "query is a PyTorch tensor but key is a NumPy",
        ),
    ],
)
def test_errors(run: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(*arrays())


def wide(h: int) -> Score:
    return Additive(normal(h, D), normal(h, D), normal(h))


def test_what_it_is() -> None:
    assert isinstance(prepare_keys(arrays()[1]), PreparedKeys)


@FRAMEWORKS
@WITH_A_BIAS
def test_prepared_keys_are_a_snapshot(name: str, framework: str) -> None:
    """Prepared keys stay the same when their keys are changed in place, at any T_q."""
    to = torch.tensor if framework == "torch" else np.array
    score = make_score(name).map(to)
    q, k, v = map(to, arrays())
    for query in (q[..., :1, :], q[..., :2, :], q):
        keys = to(np.asarray(k))
        expected = attention(query, keys, v, score=score)
        prepared = prepare_keys(keys, score)
        keys[..., 3:, :] = 7.0
        for impl in ("auto", "reference"):
            same([attention(query, prepared, v, score=score, impl=impl)], [expected])
        assert np.shares_memory(np.asarray(prepared.key), np.asarray(keys)) is False


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_the_gradient_of_a_snapshot_is_that_of_its_forward(queries: int) -> None:
    """Gradients are those of the keys when prepared, packed for the core or not."""
    w, q = torch.randn(8, requires_grad=True), torch.randn(2, queries, 8)
    b, v = torch.randn(2, 300, 8), torch.randn(2, 300, 3)
    score, found = Additive(None, None, w), []
    for change in (False, True):
        keys = b.clone()
        prepared = prepare_keys(keys, score)
        if change:
            keys[:, 150:] = torch.randn(2, 150, 8)
        out = attention(q, prepared, v, score=score)
        found.append([out.detach(), *gradients([out], [w])])
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)


def test_a_layer_takes_the_values_of_the_snapshot() -> None:
    layer, keys = Attention("additive", hidden=4, d_q=D, d_k=D), torch.randn(2, T_K, D)
    query, before = torch.randn(2, 1, D), keys.clone()
    prepared = layer.prepare_keys(keys)
    keys.zero_()
    torch.testing.assert_close(layer(query, prepared), layer(query, before))


@FRAMEWORKS
def test_parameters_with_leading_dimensions_that_keys_lack(framework: str) -> None:
    """`prepare_keys` accepts the parameters that `attention` accepts."""
    to = torch.tensor if framework == "torch" else np.asarray
    q, k, v = map(to, (normal(3, 2, T_Q, D), normal(1, 2, T_K, D), normal(1, 2, T_K, D_V)))
    for sigma in (normal(3, 2), normal(3, 1), normal(1, 1), normal(2)):
        score = Gaussian(to(np.abs(sigma) + 1))
        found = attention(q, prepare_keys(k, score), v, score=score)
        same([found], [attention(q, k, v, score=score)])
    own = Additive(to(normal(2, 4, D)), to(normal(2, 4, D, seed=1)), to(normal(4)))
    found = attention(q, prepare_keys(k[0, 0], own), v, score=own)
    same([found], [attention(q, k[0, 0], v, score=own)])
