"""Calls across ranks, compared with the same call of one process, on every rank."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any, cast
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

from anyscore import (
    Additive,
    ALiBi,
    Bilinear,
    Causal,
    Contiguous,
    Cosine,
    Dot,
    Edges,
    Euclidean,
    GATv2,
    Gaussian,
    Interval,
    Keys,
    Laplace,
    Lorentz,
    Relative,
    ScaledDot,
    Sequences,
    Sigmoid,
    StudentT,
    Trilinear,
    Uneven,
    Window,
    Zigzag,
    attention,
    log_sum_exp,
    plan,
)
from anyscore.functional.layouts import Layout
from anyscore.torch import Attention, MultiHeadAttention, SelfAttention

BATCH, HEADS, TOKENS, WIDTH, HIDDEN, D_V = 2, 2, 36, 6, 8, 5

Leaves = dict[str, Tensor]
SCORES: dict[str, Callable[[Leaves], Any]] = {
    "additive": lambda x: Additive(x["W_q"], x["W_k"], x["w"]),
    "gatv2": lambda x: GATv2(x["W_q"], x["W_k"], x["w"]),
    "bilinear": lambda x: Bilinear(x["W_q"][:WIDTH]),
    "trilinear": lambda x: Trilinear(x["W_q"][0], x["W_k"][0], x["w"][:WIDTH]),
    "laplace": lambda x: Laplace(2.0),
    "gaussian": lambda x: Gaussian(1.5),
    "scaled_dot": lambda x: ScaledDot(),
    "dot": lambda x: Dot(),
    "cosine": lambda x: Cosine(2.0),
    "euclidean": lambda x: Euclidean(1.0),
    "student_t": lambda x: StudentT(1.0),
    "lorentz": lambda x: Lorentz(1.0),
}
ONE_OUTER = "euclidean", "student_t", "lorentz"
"""The scores with an outer function, which take no cap across ranks."""


def _third() -> Tensor:
    return torch.arange(TOKENS) % 3 > 0


OPTIONS: dict[str, Callable[[Leaves], dict[str, Any]]] = {
    "plain": lambda x: {},
    "causal": lambda x: {"mask": Causal("end")},
    "window": lambda x: {"mask": Window(5, 2, align="end")},
    "lengths": lambda x: {"valid_lens": torch.tensor([TOKENS - 3, 0])},
    "causal and lengths": lambda x: {"mask": Causal("end"), "valid_lens": torch.tensor([3, 36])},
    "interval": lambda x: {"mask": Interval(torch.tensor([4, 30]), None)},
    "keys": lambda x: {"mask": Causal("end") & Keys(_third())},
    "documents": lambda x: {"mask": Sequences([0, 10, 11, TOKENS]) & Causal()},
    "alibi": lambda x: {"mask": Causal("end"), "bias": ALiBi(x["per_head"].abs(), align="end")},
    "relative, cap": lambda x: {"bias": Relative(x["table"], align="end"), "softcap": 3.0},
    "bias after": lambda x: {"bias_after": Relative(x["table"], align="end")},
    "sink": lambda x: {"mask": Causal("end"), "sink": x["per_head"]},
    "sigmoid": lambda x: {"mask": Causal("end") & Keys(_third()), "normalizer": "sigmoid"},
    "sigmoid of all keys": lambda x: {"normalizer": "sigmoid"},
    "sigmoid, bias": lambda x: {"mask": Causal("end"), "normalizer": Sigmoid(-2.0)},
}


def layout_of(name: str, ranks: int) -> Layout:
    group = dist.group.WORLD
    if name == "uneven":
        return Uneven(group, [TOKENS - 7 * (ranks - 1), *[7] * (ranks - 1)])
    if name == "empty ranks":
        return Uneven(group, [*[0] * (ranks - 1), TOKENS])
    if name == "without tokens":
        return Contiguous(group)
    return {"contiguous": Contiguous, "zigzag": Zigzag}[name](group, TOKENS)


def drawn(queries: int, dtype: torch.dtype = torch.float64, kv_heads: int = HEADS) -> Leaves:
    """Return queries, keys, values and parameters, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "query": (BATCH, HEADS, queries, WIDTH),
        "key": (BATCH, kv_heads, TOKENS, WIDTH),
        "value": (BATCH, kv_heads, TOKENS, D_V),
        "W_q": (HIDDEN, WIDTH),
        "W_k": (HIDDEN, WIDTH),
        "w": (HIDDEN,),
        "per_head": (HEADS,),
        "table": (HEADS, 11),
        "upstream": (BATCH, HEADS, queries, D_V),
    }
    return {
        name: torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
        for name, shape in shapes.items()
    }


def results(
    leaves: Leaves, score: str, option: str, impl: str, across: Any = None
) -> dict[str, Tensor]:
    """Return output, log-sum-exp and gradients of a call, alone or across ranks."""
    x = {name: y.clone().requires_grad_(name != "upstream") for name, y in leaves.items()}
    queries, keys = across or (None, None)

    def part(name: str, layout: Layout | None) -> Tensor:
        return x[name] if layout is None else layout.shard(x[name])

    given = OPTIONS[option](x)
    has_lse = given.get("normalizer", "softmax") == "softmax"
    more = {} if across is None else {"across": across}
    found = attention(
        part("query", queries), part("key", keys), part("value", keys), score=SCORES[score](x),
        return_lse=has_lse, impl=impl, **given, **more,
    )  # fmt: skip
    output = found.output if has_lse else found
    loss = (output * part("upstream", queries)).sum()
    made = {"output": output.detach()}
    if has_lse:
        made["lse"] = found.lse.detach()[..., None]
        loss = loss + 0.3 * torch.where(found.lse == -math.inf, 0.0, found.lse).sum()
    loss.backward()
    return made | {f"d_{name}": y.grad for name, y in x.items() if y.grad is not None}


def compare(
    rank: int, ranks: int, scheme: str, layout: str, scores: list[str], option: str, impl: str,
    dtype: str = "float64", kv_heads: int = HEADS,
) -> dict[str, float]:  # fmt: skip
    """Return the largest error of each score across ranks, relative to numbers of one process."""
    keys = layout_of(layout, ranks)
    few = None if scheme == "stay" else Zigzag(dist.group.WORLD, 7)
    across = (keys, keys) if scheme == "ring" else (few, keys)
    leaves = drawn(TOKENS if scheme == "ring" else 7, getattr(torch, dtype), kv_heads)
    return {
        score: _error(
            results(leaves, score, option, impl),
            results(leaves, score, option, impl, across),
            across,
        )
        for score in scores
    }


def _error(alone: dict[str, Tensor], found: dict[str, Tensor], across: Any) -> float:
    """Return the largest difference. Gradients are summed over ranks, unless each has the whole."""
    worst, queries = 0.0, across[0]
    for name, expected in alone.items():
        y = found.get(name, torch.zeros_like(expected)).clone()
        if not name.startswith("d_"):
            expected = expected if queries is None else queries.shard(expected)
        elif queries is not None or name in ("d_key", "d_value"):
            dist.all_reduce(y)
        assert y.shape == expected.shape
        if y.numel():
            same = torch.equal(y == -math.inf, expected == -math.inf)
            difference = torch.where(expected == -math.inf, 0.0, y - expected).abs().max().item()
            worst = max(worst, difference if same else math.inf)
            worst = math.nan if difference != difference else worst
    return worst


def _across(scheme: str, ranks: int, layout: str = "zigzag") -> tuple[Layout | None, Layout]:
    keys = layout_of(layout, ranks)
    if scheme == "ring":
        return keys, keys
    return (None if scheme == "stay" else Zigzag(dist.group.WORLD, 7)), keys


def error_ratios(rank: int, ranks: int, scheme: str, dtype: str) -> dict[str, float]:
    """Return errors of root mean square across ranks, relative to errors of one process."""
    across = _across(scheme, ranks)
    exact = drawn(TOKENS if scheme == "ring" else 7)
    narrow = {name: x.to(getattr(torch, dtype)) for name, x in exact.items()}
    exact = {name: x.double() for name, x in narrow.items()}
    found: dict[str, float] = {}
    for score in ("additive", "laplace", "scaled_dot", "gaussian"):
        true = results(exact, score, "causal", "auto")
        alone = results(narrow, score, "causal", "auto")
        shared = results(narrow, score, "causal", "auto", across)
        for name in ("output", "d_query", "d_key", "d_value"):
            queries, keys = across
            own = keys if name in ("d_key", "d_value") else queries
            y = shared[name]
            if name.startswith("d_") and own is not None:  # the gradient of a whole tensor
                dist.all_reduce(y)
                own = None
            expected = true[name] if own is None else own.shard(true[name])
            one = alone[name] if own is None else own.shard(alone[name])
            worst = (one - expected).square().mean().sqrt()
            found[f"{score} {name}"] = ((y - expected).square().mean().sqrt() / worst).item()
    return found


def with_nan_in_padding(rank: int, ranks: int) -> dict[str, float]:
    """Return differences to zeros in the padding, which the last ranks have."""
    found = []
    for padding in (0.0, math.nan):
        x = drawn(TOKENS)
        layout = layout_of("contiguous", ranks)
        for name in ("key", "value"):
            x[name][..., 20:, :] = padding
        parameters = {n: x[n].requires_grad_() for n in ("W_q", "W_k", "w")}
        q, k, v = (layout.shard(x[n]) for n in ("query", "key", "value"))
        output = attention(
            q, k, v, score=Additive(x["W_q"], x["W_k"], x["w"]), valid_lens=20, across=layout
        )
        output.sum().backward()
        found.append({"output": output.detach()} | {n: p.grad for n, p in parameters.items()})
    zeros, nan = found
    return {name: (zeros[name] - nan[name]).abs().max().item() for name in zeros}


def same_bits_twice(rank: int, ranks: int, scheme: str) -> bool:
    """Return whether two calls have the same bits."""
    across = _across(scheme, ranks)
    leaves = drawn(TOKENS if scheme == "ring" else 7, torch.float32)
    one, other = (results(leaves, "additive", "causal", "auto", across) for _ in range(2))
    return all(torch.equal(one[name], other[name]) for name in one)


def shards_and_positions(rank: int, ranks: int, name: str) -> bool:
    """Return whether shards, positions, gathered tokens and their gradients are right."""
    layout = layout_of(name, ranks)
    x = torch.arange(float(TOKENS)).reshape(1, TOKENS, 1).expand(2, TOKENS, 3).contiguous()
    part = layout.shard(x).requires_grad_()
    whole = layout.gather(part)
    (whole * x * (rank + 1)).sum().backward()
    expected = part.detach() * sum(range(1, ranks + 1))
    along = layout.shard(torch.arange(TOKENS), dim=0)
    return (
        torch.equal(part[0, :, 0].long(), layout.positions(part))
        and torch.equal(along, layout.positions(along, dim=0))
        and torch.equal(whole, x)
        and torch.equal(part.grad, expected)
        and torch.equal(layout.gather(along, dim=0), torch.arange(TOKENS))
    )


def log_sum_exp_error(rank: int, ranks: int) -> float:
    """Return the error of log_sum_exp across ranks."""
    x, layout = drawn(TOKENS), layout_of("zigzag", ranks)
    expected = log_sum_exp(x["query"], x["key"], score=Laplace(2.0), mask=Causal())
    q, k = layout.shard(x["query"]), layout.shard(x["key"])
    found = log_sum_exp(q, k, score=Laplace(2.0), mask=Causal(), across=layout)
    return (found - layout.shard(expected, -1)).abs().max().item()


def planned(rank: int, ranks: int, scheme: str) -> tuple[str, str]:
    """Return route and reason of a plan."""
    queries, keys = _across(scheme, ranks)
    x = drawn(TOKENS if scheme == "ring" else 7)
    q = x["query"] if queries is None else queries.shard(x["query"])
    k, v = (keys.shard(x[name]) for name in ("key", "value"))
    found = plan(q, k, v, score=Laplace(2.0), valid_lens=20, across=(queries, keys))
    return found.route, found.reason


def planned_on_rank_0(rank: int, ranks: int) -> bool:
    """Return whether rank 0 has a plan, which the others do not ask for."""
    return rank > 0 or bool(planned(rank, ranks, "ring"))


def array_bias_error(rank: int, ranks: int) -> float:
    """Return the error with an array of biases: the rank's queries, the keys of all ranks."""
    x, layout = drawn(TOKENS), layout_of("zigzag", ranks)
    bias = torch.randn(
        HEADS, TOKENS, TOKENS, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    whole, part = bias.clone().requires_grad_(), layout.shard(bias).requires_grad_()
    expected = attention(x["query"], x["key"], x["value"], score=Laplace(2.0), bias=whole)
    (expected * x["upstream"]).sum().backward()
    q, k, v, upstream = (layout.shard(x[n]) for n in ("query", "key", "value", "upstream"))
    found = attention(q, k, v, score=Laplace(2.0), bias=part, across=layout)
    (found * upstream).sum().backward()
    errors = found - layout.shard(expected), part.grad - layout.shard(whole.grad)
    return max(e.abs().max().item() for e in errors)


class _Model(torch.nn.Module):
    """Queries, keys and values by one linear layer; attention; a checkpoint around it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, 3 * WIDTH, dtype=torch.float64)
        self.w = torch.nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor, across: Layout | None) -> Tensor:
        found: Tensor = checkpoint(self._attend, x, across, use_reentrant=False)
        return found

    def _attend(self, x: Tensor, across: Layout | None) -> Tensor:
        q, k, v = self.linear(x).chunk(3, -1)
        eye = torch.eye(WIDTH, dtype=x.dtype)
        score = Additive(eye, eye, self.w)
        found: Tensor = attention(q, k, v, score=score, mask=Causal(), across=across)
        return found


def checkpointed_in_data_parallel_error(rank: int, ranks: int, fully_sharded: bool) -> float:
    """Return the error of gradients that DistributedDataParallel, or FSDP2, averages over ranks."""
    layout, x = layout_of("zigzag", ranks), drawn(TOKENS)["query"]
    torch.manual_seed(0)
    alone = _Model()
    alone(x, None).square().mean().backward()
    torch.manual_seed(0)
    model: Any = _Model()
    if fully_sharded:  # parameters are in pieces between calls
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    model(layout.shard(x), layout).square().mean().backward()
    found = [p.grad.full_tensor() if fully_sharded else p.grad for p in model.parameters()]
    pairs = zip(alone.parameters(), found, strict=True)
    return max((p.grad - g).abs().max().item() for p, g in pairs)


def _message(call: Callable[[], Any]) -> str:
    """Return the message of an error; an empty one without an error."""
    try:
        call()
    except (TypeError, ValueError, NotImplementedError) as error:
        return str(error)
    return ""


def different(rank: int, ranks: int, what: str) -> str:
    """Return the message of a call in which the last rank differs."""
    odd, group = rank == ranks - 1, dist.group.WORLD
    x = torch.ones(2, 12, 4, dtype=torch.float32 if what == "dtype" and odd else torch.float64)
    x = x[..., :3] if what == "width" and odd else x
    x = x.requires_grad_(what == "gradients" and odd)
    value = x[:, :11] if what == "tokens" and odd else x
    score: Any = Laplace(3.0 if what == "number" and odd else 2.0)
    score = Gaussian(2.0) if what == "score" and odd else score
    options: dict[str, Any] = {"mask": Window(2, 2) if what == "mask" and odd else Causal()}
    if what == "softcap" and odd:
        options["softcap"] = 3.0
    if what == "bias" and odd:
        options["bias"] = ALiBi(torch.tensor(1.0, dtype=torch.float64))
    layout = (Zigzag if what == "layout" and odd else Contiguous)(group)
    return _message(lambda: attention(x, x, value, score=score, across=layout, **options))


def different_in_a_layer(rank: int, ranks: int, what: str) -> str:
    """Return the message of a layer in which the last rank differs."""
    odd, given = rank == ranks - 1, {"mask": Causal()}
    tokens, batch = (13 if what == "tokens" and odd else 12), (3 if what == "batch" and odd else 2)
    x = torch.ones(batch, tokens, 12)
    if what == "valid_lens":
        given = {"valid_lens": torch.tensor(7) if odd else torch.tensor([7, 8])}
    if what == "no mask":
        given = {} if odd else given
    layer = MultiHeadAttention(12, 2)
    return _message(lambda: layer(x, **given, across=Contiguous(dist.group.WORLD)))


def refused(rank: int, ranks: int, what: str) -> str:
    """Return the message of a call that no rank can run."""
    layout: Any = Contiguous(dist.group.WORLD)
    if what in ("heads", "self"):
        layer = MultiHeadAttention(12, 2) if what == "heads" else SelfAttention(12, 2)
        return _message(lambda: layer(torch.ones(2, 12, 12), across=(None, layout)))
    x: Any = torch.ones(12, 4, dtype=torch.float64, requires_grad=what == "second derivative")
    options: dict[str, Any] = {
        "sparsemax": {"normalizer": "sparsemax"},
        "weights": {"return_weights": True},
        "edges": {"mask": Edges.from_index(torch.tensor([[0], [0]]), queries=12)},
        "separable": {"impl": "separable", "score": SCORES["additive"](drawn(1))},
        "callable": {"score": lambda q, k: q @ k.mT},
        "bias of all queries": {"bias": torch.ones(12 * ranks, 12 * ranks)},
        "another bias": {"bias_after": torch.ones(13, 12 * ranks), "softcap": 2.0},
    }.get(what, {})
    if what == "DTensor":
        mesh = init_device_mesh("cpu", (ranks,))
        shared, whole = (distribute_tensor(y, mesh, [Replicate()]) for y in (x, x > 2))
        attention(shared, shared, shared, mask=whole[:, :1])
        return _message(lambda: attention(shared, shared, shared, mask=Causal()))
    if what == "count":
        layout = Uneven(dist.group.WORLD, [12, 12])
        return _message(lambda: attention(x[:11], x, x, score=Laplace(2.0), across=layout))
    if what == "lengths":
        layout = Uneven(dist.group.WORLD, [12])
    if what == "dropout":
        layout = Uneven(dist.group.WORLD, [6, 6])
        return _message(lambda: attention(x[:6], x[:6], x[:6], dropout=0.5, across=layout))
    if what == "across":
        layout = 3
    if what == "over":
        layout = Contiguous("cp")
    if what == "numpy":
        x = x.numpy()
    if what == "separable":
        x = torch.ones(12, WIDTH, dtype=torch.float64)
    options = {"score": Laplace(2.0)} | options
    if what != "second derivative":
        return _message(lambda: attention(x, x, x, across=layout, **options))
    output = attention(x, x, x, across=layout, **options)
    return _message(lambda: torch.autograd.grad(output.sum(), x, create_graph=True))


def drawn_sizes(rank: int, ranks: int, seed: int) -> list[str]:
    """Return what is wrong with calls whose biases, masks and lengths have drawn sizes.

    A rank has the rows of its queries and the columns of all keys; one row or one column stands for
    all. A call with any other size is refused, also where a slice of it would fit.
    """
    draw, wrong = random.Random(seed), []
    layout = draw.choice((Contiguous, Zigzag))(dist.group.WORLD, TOKENS)
    x = {n: y[:, :1] for n, y in drawn(TOKENS).items() if n in ("query", "key", "value")}
    parts, own = {n: layout.shard(y) for n, y in x.items()}, TOKENS // ranks
    generator = torch.Generator().manual_seed(seed)
    for _ in range(40):
        name = draw.choice(("bias", "bias_after", "mask", "valid_lens"))
        rows = draw.choice((own, own, 1, own + 1, TOKENS, 2))
        columns = draw.choice((TOKENS, TOKENS, 1, own, TOKENS + 1)) if name != "valid_lens" else 1
        fits = rows in (own, 1) and columns in (TOKENS, 1)
        size = (TOKENS if rows == own else rows, columns)
        whole = torch.randn(BATCH, 1, *size, dtype=torch.float64, generator=generator)
        if name == "mask":
            whole = whole > -1
        elif name == "valid_lens":
            whole = (whole[:, 0, :, 0].abs() * 20).long()
            whole = whole[:, 0] if rows == 1 else whole
        dim = -1 if name == "valid_lens" else -2
        part = layout.shard(whole, dim=dim) if rows == own else whole
        options: dict[str, Any] = {"score": Laplace(2.0), "softcap": 2.0}
        try:
            found = attention(**parts, **options, **{name: part}, across=layout)
        except ValueError:
            wrong += [f"{name} {tuple(part.shape)} was refused"] if fits else []
            continue
        if not fits:
            wrong.append(f"{name} {tuple(part.shape)} was not refused")
            continue
        expected = layout.shard(attention(**x, **options, **{name: whole}))
        if not torch.allclose(found, expected, rtol=0, atol=1e-12):
            wrong.append(f"{name} {tuple(part.shape)} gives another result")
    return wrong


def parallel_projections_error(rank: int, ranks: int, score: str) -> float | str:
    """Return the error of outputs and gradients of a layer whose heads are shared by ranks.

    The message, if the layer is refused.
    """
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(12, 4, score=score, dtype=torch.float64), drawn(TOKENS)["query"]
    x, lengths = x.flatten(1, 2)[..., :6].repeat(1, 1, 2), torch.tensor([5, 20])
    padded = x.clone()
    padded[0, 5:], padded[1, 20:] = math.nan, math.nan
    alone = copy.deepcopy(layer)
    names = {"W_q": ColwiseParallel(), "W_k": ColwiseParallel(), "W_v": ColwiseParallel()}
    parallelize_module(
        layer, init_device_mesh("cpu", (ranks,)), {**names, "W_o": RowwiseParallel()}
    )
    output = alone(x, padded, padded, valid_lens=lengths)
    output.square().sum().backward()
    try:
        found = layer(x, padded, padded, valid_lens=lengths)
    except ValueError as error:
        return str(error)
    found.square().sum().backward()
    errors = [(found - output).abs().max()]
    for name, p in alone.named_parameters():
        gradient: Any = layer.get_parameter(name).grad
        errors.append((gradient.full_tensor() - p.grad).abs().max())
    return max(math.inf if e != e else e.item() for e in errors)


def one_token_error(rank: int, ranks: int, impl: str) -> float:
    """Return the error with one token in each piece: its gradients of a + b are one tensor."""
    layout = Zigzag(dist.group.WORLD)
    x = {
        n: y[:, :, : 2 * ranks] if n in ("query", "key", "value") else y
        for n, y in drawn(TOKENS).items()
    }
    found = []
    for across in (None, layout):
        leaves = {n: x[n].clone().requires_grad_() for n in ("query", "key", "value")}
        q, k, v = (y if across is None else layout.shard(y) for y in leaves.values())
        score = SCORES["additive"](x)
        output = attention(q, k, v, score=score, mask=Causal(), impl=impl, across=across)
        output.square().sum().backward()
        found.append([y.grad for y in leaves.values()])
    for y in found[1]:
        dist.all_reduce(y)
    return max((y - z).abs().max().item() for y, z in zip(*found, strict=True))


def flat_bias_error(rank: int, ranks: int) -> float:
    """Return the error with a bias of each key, and with a boolean mask of each query."""
    x, layout = drawn(TOKENS), layout_of("zigzag", ranks)
    q, k, v = (layout.shard(x[n]) for n in ("query", "key", "value"))
    bias, worst = x["query"][0, 0, :, 0], 0.0
    keep = (torch.arange(TOKENS) % 5 > 0)[:, None]
    for alone, shared in (
        ({"bias": bias}, {"bias": bias}),
        ({"mask": keep}, {"mask": layout.shard(keep)}),
    ):
        k.requires_grad_()
        expected = attention(x["query"], x["key"], x["value"], score=Laplace(2.0), **alone)
        found = attention(q, k, v, score=Laplace(2.0), across=layout, **shared)
        worst = max(worst, (found - layout.shard(expected)).abs().max().item())
    return worst


def layer_error(rank: int, ranks: int, scheme: str) -> float:
    """Return the error of a layer with parameters of its own: outputs, and all gradients."""
    queries, keys = across = _across(scheme, ranks)
    x = drawn(TOKENS if scheme == "ring" else 7)
    torch.manual_seed(0)
    layer = Attention("additive", hidden=HIDDEN, d_q=WIDTH, d_k=WIDTH, dtype=torch.float64)
    q, k, v, upstream = (x[n] for n in ("query", "key", "value", "upstream"))
    expected = layer(q, k, v, mask=Causal("end"))
    (expected * upstream).sum().backward()
    alone = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    if queries is not None:
        q, upstream, expected = (queries.shard(y) for y in (q, upstream, expected))
    found = layer(q, keys.shard(k), keys.shard(v), mask=Causal("end"), across=across)
    (found * upstream).sum().backward()
    for p in layer.parameters():
        if queries is not None:
            dist.all_reduce(p.grad)
    pairs = zip(alone, layer.parameters(), strict=True)
    errors = [(g - p.grad).abs().max().item() for g, p in pairs]
    return max(*errors, (found - expected).abs().max().item())


def left_of_a_destroyed_group(rank: int, ranks: int) -> tuple[bool, str]:
    """Return whether a layout and a graph keep a destroyed group alive; and what a call says."""
    group = dist.new_group()
    layout, x = Contiguous(group), torch.randn(1, 4, 8, requires_grad=True)
    found = attention(x, x, x, score=Laplace(2.0), across=layout)
    dist.destroy_process_group(group)
    lives = ref(group)
    del group
    assert found.requires_grad
    return lives() is not None, _message(lambda: attention(x, x, x, across=layout))


def multi_head_error(rank: int, ranks: int) -> float:
    """Return the error of layers with projections, whose padding is NaN on several ranks.

    Errors of gradients are relative to the largest entry.
    """
    layout, worst = layout_of("zigzag", ranks), 0.0
    x = drawn(TOKENS)["query"][:, 0].repeat(1, 1, 2)  # (batch, tokens, 12)
    x[0, 5:], x[1, 20:] = math.nan, math.nan
    lengths = torch.tensor([5, 20])
    attending = torch.arange(TOKENS) < lengths[:, None]
    heads = MultiHeadAttention(12, 2, kv_heads=1, score="laplace", dtype=torch.float64)
    both = heads, SelfAttention(12, 4, score="gatv2", dtype=torch.float64)
    for layer in both:
        torch.manual_seed(0)
        for p in layer.parameters():
            torch.nn.init.normal_(p)
        pairs = attending[:, None, :, None] & attending[:, None, None]
        given: dict[str, Any] = {"mask": pairs}
        if layer is not heads:  # its projection reads all rows
            x, given = x.nan_to_num(), {"valid_lens": lengths}
        expected = layer(x, **given)
        expected.square().sum().backward()
        alone = [p.grad.clone() for p in layer.parameters()]
        layer.zero_grad()
        given = {n: y if n == "valid_lens" else layout.shard(y) for n, y in given.items()}
        found = layer(layout.shard(x), **given, across=layout)
        found.square().sum().backward()
        for p in layer.parameters():
            dist.all_reduce(p.grad)
        gradients = zip(alone, layer.parameters(), strict=True)
        errors = [((g - p.grad).abs().max() / g.abs().max()).item() for g, p in gradients]
        errors.append((found - layout.shard(expected)).abs().max().item())
        worst = max(worst, *(math.inf if e != e else e for e in errors))
    return worst


def dropout_error(rank: int, ranks: int, scheme: str, layout: str, impl: str) -> float:
    """Return the error with dropout of one seed: output, and gradients summed over ranks."""
    queries, keys = _across(scheme, ranks, layout)
    tokens = TOKENS
    if layout == "zigzag":  # pieces of 8 tokens
        tokens, keys = 32, Zigzag(dist.group.WORLD, 32)
        queries = keys if scheme == "ring" else queries
    across, found = (queries, keys), []
    for given in (None, across):
        x = drawn(TOKENS if scheme == "ring" else 7)
        x = {n: y if y.shape[-2:-1] != (TOKENS,) else y[..., :tokens, :] for n, y in x.items()}
        leaves = {n: x[n].clone().requires_grad_() for n in ("query", "key", "value")}
        q, k, v = leaves.values()
        if given is not None:
            q, k, v = q if queries is None else queries.shard(q), keys.shard(k), keys.shard(v)
        more = {} if given is None else {"across": given}
        output = attention(
            q, k, v, score=Laplace(2.0), mask=Causal("end"), dropout=0.4, dropout_seed=7,
            impl=impl, **more,
        )  # fmt: skip
        upstream = x["upstream"]
        here = given is None or queries is None
        (output * (upstream if here else queries.shard(upstream))).sum().backward()
        gradients = {n: y.grad.clone() for n, y in leaves.items()}
        for n, g in gradients.items():
            if given is not None and (n != "query" or queries is not None):
                dist.all_reduce(g)
        found.append((output.detach(), gradients))
    (expected, alone), (output, shared) = found
    expected = expected if queries is None else queries.shard(expected)
    errors = [(alone[n] - shared[n]).abs().max().item() for n in alone]
    return max(*errors, (output - expected).abs().max().item() if output.numel() else 0.0)


def drawn_seeds(rank: int, ranks: int) -> Tensor:
    """Return the output of a call whose seed is drawn, after another state on each rank."""
    torch.manual_seed(rank)
    layout = Contiguous(dist.group.WORLD)
    value = layout.shard(torch.eye(12 * ranks, dtype=torch.float64))
    x = layout.shard(torch.ones(12 * ranks, 4, dtype=torch.float64))
    return layout.gather(attention(x, x, value, dropout=0.5, across=layout))


def has_weights(rank: int, ranks: int) -> bool:
    """Return whether a layer has weights after a call across ranks."""
    layer, x = Attention("dot"), torch.ones(2, 12, 4)
    layer(x, x, x)
    layer(x, x, x, across=Contiguous(dist.group.WORLD))
    return layer.attention_weights is not None


def compiled_error(rank: int, ranks: int, scheme: str, layout: str) -> float:
    """Return the error of output and gradients in one graph of torch.compile."""
    queries, keys = across = _across(scheme, ranks, layout)
    x = drawn(TOKENS if scheme == "ring" else 7)
    k, v = (keys.shard(x[n]) for n in ("key", "value"))
    q, upstream = (x[n] if queries is None else queries.shard(x[n]) for n in ("query", "upstream"))

    def call(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
        score = Additive(x["W_q"], x["W_k"], w)
        found = attention(2 * q, k, v, score=score, mask=Causal("end"), across=across)
        return cast(Tensor, (found * upstream).sum())

    found = []
    for function in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
        leaves = [y.clone().requires_grad_() for y in (q, k, x["w"])]
        loss = function(*leaves)
        loss.backward()
        found.append([loss.detach(), *(y.grad for y in leaves)])
    pairs = zip(*found, strict=True)
    return max((y - z).abs().max().item() for y, z in pairs if y.numel())
