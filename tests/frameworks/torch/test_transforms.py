"""PyTorch's transforms of a call are right or raise an error, and are never silently wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vmap
from torch.utils.checkpoint import checkpoint

from anyscore import (
    Additive,
    Causal,
    Keys,
    Lengths,
    attention,
    log_sum_exp,
    log_weights,
    plan,
    scores,
)
from helpers.samples import normal
from helpers.transformed import (
    MASK,
    MASKS,
    SCORES,
    WARNINGS,
    autograd,
    loss_of,
    same,
    tensors,
    torch_score,
)

pytestmark = [pytest.mark.sample, *WARNINGS]

# torch.func


@MASK
@SCORES
def test_grad(name: str, mask: str) -> None:
    f, xs = loss_of(name, mask), tensors(2)
    same(grad(f, argnums=(0, 1, 2))(*xs), autograd(f, *xs))


@MASK
@SCORES
def test_grad_of_grad(name: str, mask: str) -> None:
    f, xs = loss_of(name, mask), tensors(2)

    def outer(*ys: Tensor) -> Tensor:
        return sum(g.square().sum() for g in grad(f, argnums=(0, 1, 2))(*ys))

    def plain(*ys: Tensor) -> Tensor:
        return sum(g.square().sum() for g in torch.autograd.grad(f(*ys), ys, create_graph=True))

    same(grad(outer, argnums=(0, 1, 2))(*xs), autograd(plain, *xs))


@MASK
@SCORES
def test_vmap_over_the_batch_is_a_loop(name: str, mask: str) -> None:
    xs = [torch.stack(pair) for pair in zip(tensors(2), tensors(2, seed=1), strict=True)]
    f, score, made = loss_of(name, mask), torch_score(name), MASKS[mask]()

    def g(*ys: Tensor) -> Tensor:
        return attention(*ys, score=score, mask=made)

    loop = torch.stack([g(*(x[i] for x in xs)) for i in range(2)])
    same([vmap(g)(*xs)], [loop])
    only_keys = torch.stack([g(xs[0][0], xs[1][i], xs[2][0]) for i in range(2)])
    same([vmap(g, in_dims=(None, 0, None))(xs[0][0], xs[1], xs[2][0])], [only_keys])
    # Gradients of each sample, as for differential privacy
    each = vmap(grad(f, argnums=(0, 1, 2)))(*xs)
    for i in range(2):
        same([g[i] for g in each], autograd(f, *(x[i] for x in xs)))


def test_vmap_over_parameters_is_a_loop() -> None:
    """vmap over parameters gives an ensemble, and the gradient of each member."""
    xs, mask = tensors(2), MASKS["boolean"]()
    members = [torch_score("Additive", seed) for seed in range(3)]
    stacked = [torch.stack(p) for p in zip(*(m.tensors().values() for m in members), strict=True)]

    def f(W_q: Tensor, W_k: Tensor, w_v: Tensor, bias: Tensor) -> Tensor:
        out = attention(*xs, score=Additive(W_q, W_k, w_v, bias), mask=mask)
        return out.square().sum()

    found = vmap(grad(f, argnums=(0, 1, 2, 3)))(*stacked)
    for i, member in enumerate(members):
        same([g[i] for g in found], autograd(f, *member.tensors().values()))
    same([vmap(f)(*stacked)], [torch.stack([f(*m.tensors().values()) for m in members])])


@pytest.mark.parametrize("make", [Lengths, Keys, lambda x: x, lambda x: Causal("end") & x])
@pytest.mark.parametrize("name", ["ScaledDot", "Gaussian"])
def test_vmap_over_masks_is_a_loop(name: str, make: Callable[[Tensor], Any]) -> None:
    xs, score = tensors(2), torch_score(name)
    masks = torch.tensor(normal(4, 2, 3, 7) > -0.5)
    if make is Lengths:
        masks = torch.tensor([[0, 7], [3, 4], [1, 2], [5, 9]])
    if make is Keys:
        masks = masks[:, :, 0]

    def f(q: Tensor, m: Tensor) -> Tensor:
        return attention(q, *xs[1:], score=score, mask=make(m)).square().sum()

    found = vmap(grad(f), in_dims=(None, 0))(xs[0], masks)
    for i, m in enumerate(masks):
        same([found[i]], autograd(lambda q, m=m: f(q, m), xs[0]))


@MASK
@pytest.mark.parametrize("name", ["ScaledDot", "Trilinear", "Laplace", "GATv2"])
def test_jacrev(name: str, mask: str) -> None:
    xs, score, made = tensors(2), torch_score(name), MASKS[mask]()

    def f(k: Tensor) -> Tensor:
        return attention(xs[0], k, xs[2], score=score, mask=made)

    expected = torch.autograd.functional.jacobian(f, xs[1])
    same([jacrev(f)(xs[1])], [expected])


@MASK
@SCORES
def test_forward_mode(name: str, mask: str) -> None:
    xs, tangents = tensors(2), tensors(2, seed=1)
    f = loss_of(name, mask)
    expected = sum((g * t).sum() for g, t in zip(autograd(f, *xs), tangents, strict=True))
    _, found = jvp(f, tuple(xs), tuple(tangents))
    torch.testing.assert_close(found, expected)


@SCORES
def test_forward_mode_of_the_output_alone(name: str) -> None:
    xs, tangents, score = tensors(2), tensors(2, seed=1), torch_score(name)

    def f(*ys: Tensor) -> Tensor:
        return attention(*ys, score=score).sum()

    expected = sum((g * t).sum() for g, t in zip(autograd(f, *xs), tangents, strict=True))
    torch.testing.assert_close(jvp(f, tuple(xs), tuple(tangents))[1], expected)


NESTED: dict[str, Callable[..., Any]] = {
    "forward of forward": lambda f: jacfwd(jacfwd(f)),
    "reverse of forward": lambda f: jacrev(jacfwd(f)),
}


@pytest.mark.slow
@MASK
def test_hessian(mask: str) -> None:
    f, (q, k, v) = loss_of("Additive", mask), tensors(2)
    expected = torch.autograd.functional.hessian(lambda q: f(q, k, v), q)
    same([jacrev(jacrev(lambda q: f(q, k, v)))(q)], [expected])
    for twice in (hessian, *NESTED.values()):
        same([twice(lambda q: f(q, k, v))(q)], [expected])


@pytest.mark.slow
@MASK
def test_a_third_derivative_by_forward_mode(mask: str) -> None:
    f, (q, k, v) = loss_of("ScaledDot", mask), tensors(2)

    def of(x: Tensor) -> Tensor:
        return f(q + x, k, v)

    zero = torch.zeros((), dtype=q.dtype)
    expected = grad(grad(grad(of)))(zero)
    for thrice in (jacfwd(jacfwd(jacfwd(of))), jacfwd(grad(jacfwd(of))), jacfwd(grad(grad(of)))):
        same([thrice(zero)], [expected])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # of PyTorch
@MASK
def test_dual_numbers_and_what_is_linearized(mask: str) -> None:
    f, xs, along = loss_of("GATv2", mask), tensors(2), tensors(2, seed=1)
    expected = sum((g * t).sum() for g, t in zip(autograd(f, *xs), along, strict=True))
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(xs, along, strict=True)]
        same([forward_ad.unpack_dual(f(*duals)).tangent], [expected])
    same([linearize(f, *xs)[1](*along)], [expected])
    many = [torch.stack([t, -t]) for t in along]
    found = vmap(lambda *ts: jvp(f, tuple(xs), ts)[1])(*many)
    same([found], [torch.stack([expected, -expected])])


OPTIONS: dict[str, dict[str, Any]] = {
    "cap": {"softcap": 1.5},
    "sink": {"sink": torch.tensor([0.3, -0.2]).double()},
    "bias": {"bias": torch.linspace(-1, 1, 21).double().view(3, 7)},
    "after a cap": {"softcap": 1.5, "bias_after": torch.linspace(-1, 1, 21).double().view(3, 7)},
    "sigmoid": {"normalizer": "sigmoid"},
    "sparsemax": {"normalizer": "sparsemax"},
    "entmax15": {"normalizer": "entmax15"},
    "dropout": {"dropout": 0.4, "dropout_seed": 3},
    "weights": {"return_weights": True},
    "reference": {"impl": "reference"},
}
CALLS: dict[str, Callable[..., Any]] = {
    **{name: lambda *xs, o=o, **m: attention(*xs, **o, **m) for name, o in OPTIONS.items()},
    "scores": lambda q, k, v, mask: scores(q, k, mask=mask).masked_fill(~mask, 0.0),
    "log_weights": lambda q, k, v, mask: log_weights(q, k, mask=mask).exp(),
    "log_sum_exp": lambda q, k, v, mask: log_sum_exp(q, k, mask=mask).exp(),
}


@pytest.mark.parametrize("name", CALLS)
def test_forward_mode_of_calls_with_options(name: str) -> None:
    """Tangents of first and second order are right, with a mask that differs between queries."""
    (q, k, v), mask = tensors(2), MASKS["boolean"]()

    def f(x: Tensor) -> Tensor:
        found = CALLS[name](q + x, k * (1 + x), v + x.sin(), mask=mask)
        parts = found if isinstance(found, tuple) else [found]
        return sum(part.square().sum() for part in parts if part is not None)

    x = torch.zeros((), dtype=q.dtype)
    same([jacfwd(f)(x)], [jacrev(f)(x)])
    same([hessian(f)(x), jacfwd(jacfwd(f))(x)], [jacrev(jacrev(f))(x)] * 2)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("mask", ["boolean", "causal", "lengths"])
def test_forward_mode_reads_nothing_masked(mask: str, value: float) -> None:
    """Forward mode and gradients of tangents read neither masked values nor masked tangents."""
    (q, k, v), keep = tensors(2), torch.ones(3, 7, dtype=torch.bool).tril(4)
    made: Any = {"boolean": keep, "causal": Causal("end"), "lengths": Lengths(6)}[mask]
    k[..., -1, :] = v[..., -1, :] = value
    tangents = [torch.ones_like(q), torch.ones_like(k), torch.ones_like(v)]
    tangents[1][..., -1, :] = tangents[2][..., -1, :] = value

    def f(*xs: Tensor) -> Tensor:
        return attention(*xs, mask=made)[..., :2, :].square().sum()

    finite = [x.nan_to_num(0.0, 0.0, 0.0) for x in (q, k, v, *tangents)]
    expected = jvp(f, tuple(finite[:3]), tuple(finite[3:]))[1]
    same([jvp(f, (q, k, v), tuple(tangents))[1]], [expected])

    def along(q: Tensor) -> Tensor:
        return jvp(f, (q, k, v), tuple(tangents))[1]

    def plain(q: Tensor) -> Tensor:
        return jvp(f, (q, *finite[1:3]), tuple(finite[3:]))[1]

    attends_none = slice(None, None if mask == "lengths" else 2)  # the last query attends the key
    same([grad(along)(q)[..., attends_none, :]], [grad(plain)(q)[..., attends_none, :]])


def test_vmap_with_dropout() -> None:
    """vmap takes a seed for all, a seed for each, or a drawn seed, as in PyTorch's own dropout."""
    q, k, v = tensors()
    many = torch.stack([q] * 4)

    def f(q: Tensor, seed: Any = None) -> Tensor:
        return attention(q, k, v, dropout=0.5, dropout_seed=seed)

    same(vmap(lambda q: f(q, 3))(many), [f(q, 3)] * 4)
    same(vmap(f)(many, torch.arange(4)), [f(q, i) for i in range(4)])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(f)(many)
    torch.manual_seed(0)
    first, *others = vmap(f, randomness="different")(many)
    assert not any(torch.allclose(first, other) for other in others)
    first, *others = vmap(f, randomness="same")(many)
    same(others, [first] * 3)


# Activation checkpointing


@MASK
@SCORES
def test_activation_checkpointing(name: str, mask: str) -> None:
    f, xs = loss_of(name, mask), tensors(2)
    same(autograd(lambda *ys: checkpoint(f, *ys, use_reentrant=False), *xs), autograd(f, *xs))


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
