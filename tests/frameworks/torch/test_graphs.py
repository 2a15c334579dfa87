"""Layers over edges equal PyTorch Geometric's: constructor, call, state dict, gradients."""

from __future__ import annotations

import gc
import inspect
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyscore import Edges, attention
from anyscore.torch import GATConv, GATv2Conv, TransformerConv
from anyscore.torch.graphs.neighbours import _known
from helpers import machine

pytestmark = pytest.mark.sample

NODES, TARGETS, WIDTH, CHANNELS = 12, 9, 5, 4


Kind = type[GATConv] | type[GATv2Conv] | type[TransformerConv]
KINDS: tuple[Kind, ...] = GATConv, GATv2Conv, TransformerConv


def theirs(kind: Kind) -> Any:
    return getattr(machine.package("torch_geometric.nn"), kind.__name__)


def pairs(sources: int = NODES, targets: int = NODES) -> Tensor:
    """Return edges with self-loops and duplicates, and leave nodes without edges."""
    drawn = torch.Generator().manual_seed(0)
    both = torch.stack(
        [torch.randint(0, n - 2, (40,), generator=drawn) for n in (sources, targets)]
    )
    return torch.cat([both, both[:, :3], torch.tensor([[1, 2, 2], [1, 2, 2]])], 1)


OF_ALL: dict[str, dict[str, Any]] = {
    "plain": {},
    "heads": {"heads": 3},
    "mean of heads": {"heads": 3, "concat": False},
    "no bias": {"bias": False},
    "edges": {"edge_dim": 3, "heads": 2},
}
OF_GAT: dict[str, dict[str, Any]] = {
    "no loops": {"add_self_loops": False, "heads": 2},
    "slope": {"negative_slope": 0.05, "heads": 2},
    "residual": {"residual": True, "heads": 2},
    "slope, edges": {"negative_slope": 0.5, "heads": 2, "edge_dim": 3},
    "edges, no loops": {"edge_dim": 3, "add_self_loops": False},
    **{
        f"fill {x}": {"edge_dim": 3, "fill_value": x}
        for x in ("add", "max", "min", "mul", 0.5, None)
    },
    "fill a tensor": {"edge_dim": 3, "fill_value": torch.tensor([1.0, -1.0, 0.5])},
}
OF_GATV2: dict[str, dict[str, Any]] = {"shared": {"share_weights": True, "heads": 2}}
OF_TRANSFORMER: dict[str, dict[str, Any]] = {
    "beta": {"beta": True, "heads": 2},
    "beta of a mean": {"beta": True, "heads": 2, "concat": False, "edge_dim": 3},
    "no root": {"root_weight": False, "beta": True, "heads": 2},
}
OPTIONS: dict[Kind, dict[str, dict[str, Any]]] = {
    GATConv: OF_ALL | OF_GAT,
    GATv2Conv: OF_ALL | OF_GAT | OF_GATV2,
    TransformerConv: OF_ALL | OF_TRANSFORMER,
}
EACH = [(kind, name) for kind, named in OPTIONS.items() for name in named]


def both(kind: Kind, **options: Any) -> tuple[Any, Any]:
    torch.manual_seed(1)
    channels = options.pop("in_channels", WIDTH)
    one, other = (make(channels, CHANNELS, **options) for make in (kind, theirs(kind)))
    assert {n: x.shape for n, x in one.state_dict().items()} == {
        n: x.shape for n, x in other.state_dict().items()
    }
    for x in other.parameters():
        torch.nn.init.normal_(x, std=0.5)
    one.load_state_dict(other.state_dict())
    return one.double(), other.double()


def compare(one: Any, other: Any, xs: list[Tensor], index: Tensor, attr: Any = None) -> None:
    x = tuple(xs) if len(xs) > 1 else xs[0]
    results = []
    for layer in (one, other):
        output, (index_of, weights) = layer(x, index, attr, return_attention_weights=True)
        torch.testing.assert_close(layer(x, index, attr), output)
        loss = output.square().sum() + weights.square().sum()
        given = [y for y in (*xs, attr) if y is not None]
        named = dict(layer.named_parameters())
        wanted = [*given, *named.values()]
        slopes = torch.autograd.grad(loss, wanted, allow_unused=True)  # root_weight=False
        of_inputs, of_weights = slopes[: len(given)], slopes[len(given) :]
        results.append(
            (output, index_of, weights, of_inputs, dict(zip(named, of_weights, strict=True)))
        )
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


def normal(*shape: int, seed: int = 2) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=drawn, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("kind", "options"), EACH)
def test_equal(kind: Kind, options: str) -> None:
    given = OPTIONS[kind][options]
    index = pairs()
    attr = normal(index.shape[1], 3, seed=3) if "edge_dim" in given else None
    compare(*both(kind, **given), [normal(NODES, WIDTH)], index, attr)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loops", [True, False])
def test_sources_and_targets(kind: Kind, loops: bool) -> None:
    options = {} if kind is TransformerConv else {"add_self_loops": loops}
    layers = both(kind, in_channels=(WIDTH, 7), heads=2, **options)
    compare(*layers, [normal(NODES, WIDTH), normal(TARGETS, 7)], pairs(NODES, TARGETS))


def test_gat_shares_a_linear_layer_and_needs_no_targets() -> None:
    index = pairs(NODES, TARGETS)
    source, target = normal(NODES, WIDTH), normal(TARGETS, WIDTH, seed=4)
    compare(*both(GATConv, heads=2), [source, target], index)
    one, other = both(GATConv, heads=2, add_self_loops=False)
    torch.testing.assert_close(one((source, None), index), other((source, None), index))
    size = NODES, TARGETS
    torch.testing.assert_close(
        one((source, None), index, None, size), other((source, None), index, None, size)
    )
    one, other = both(GATConv, in_channels=(WIDTH, WIDTH), heads=2)
    compare(one, other, [source], pairs())


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv])
def test_one_feature_of_each_edge(kind: Kind) -> None:
    index = pairs()
    compare(*both(kind, edge_dim=1), [normal(NODES, WIDTH)], index, normal(index.shape[1], seed=3))


@pytest.mark.parametrize("kind", KINDS)
def test_signature(kind: Kind) -> None:
    for name in ("__init__", "forward"):
        ours, others = (
            dict(inspect.signature(getattr(x, name)).parameters) for x in (kind, theirs(kind))
        )
        for rest in ("others", "kwargs"):
            ours.pop(rest, None), others.pop(rest, None)
        assert list(ours) == list(others)
        assert all(x.default == others[n].default for n, x in ours.items())
    assert repr(kind(4, 2, heads=3)) == repr(theirs(kind)(4, 2, heads=3))


def test_dropout_and_training() -> None:
    """A model of PyTorch Geometric's tutorial, with the layer exchanged, learns its labels."""
    torch.manual_seed(0)
    x, index = torch.randn(60, 8), torch.randint(0, 60, (2, 240))
    labels = (x[:, 0] > 0).long()
    layers = GATv2Conv(8, 8, heads=4, dropout=0.3), GATv2Conv(32, 2, concat=False)
    optimizer = torch.optim.Adam([p for one in layers for p in one.parameters()], lr=0.01)

    def logits() -> Tensor:
        hidden: Tensor = torch.nn.functional.elu(layers[0](x, index))
        output: Tensor = layers[1](hidden, index)
        return output

    assert not torch.equal(layers[0](x, index), layers[0](x, index))  # dropout drops
    for _ in range(150):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits(), labels).backward()
        optimizer.step()
    for one in layers:
        one.eval()
    assert (logits().argmax(1) == labels).float().mean() > 0.9
    torch.testing.assert_close(layers[0](x, index), layers[0](x, index))


def test_pairs_are_sorted_once_and_forgotten() -> None:
    layer, x, index = GATv2Conv(WIDTH, 2), torch.randn(NODES, WIDTH), pairs()
    before = layer(x, index)
    (kept,) = _known[index][1].values()
    layer(x, index)
    assert next(iter(_known[index][1].values())) is kept
    index[:, 0] = torch.tensor([3, 4])  # a write to the index counts
    again = layer(x, index)
    torch.testing.assert_close(again, layer(x, index.clone()))
    assert not torch.equal(before, again)
    GATv2Conv(WIDTH, 2, add_self_loops=False)(x, index)
    gone = weakref.ref(index)
    del index
    gc.collect()
    assert gone() is None


def test_other_memory_is_sorted_anew() -> None:
    layer, x, index = GATv2Conv(WIDTH, 2), torch.randn(NODES, WIDTH), pairs()
    layer(x, index)
    index.data = index.flip(0)[:, 1:].clone()  # PyTorch does not count this as a write
    torch.testing.assert_close(layer(x, index), layer(x, index.clone()))


@pytest.mark.parametrize("kind", KINDS)
def test_inference_mode(kind: Kind) -> None:
    """A model evaluated in inference mode trains on the same graph, and takes edges made there."""
    layer, x, index = kind(WIDTH, 2), torch.randn(NODES, WIDTH), pairs()
    with torch.inference_mode():
        first = layer(x, index)
        torch.testing.assert_close(layer(x.clone(), index.clone()), first)
        edges = Edges.from_index(index, NODES)
        attention(x, x, x, mask=edges)
    layer(x, index).sum().backward()
    x.requires_grad_()
    attention(x, x, x, mask=edges).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [0, 4])
def test_no_edges(kind: Kind, nodes: int) -> None:
    options = {} if kind is TransformerConv else {"add_self_loops": False}
    one, other = both(kind, edge_dim=3, **options)
    given = normal(nodes, WIDTH), torch.zeros(2, 0).long(), normal(0, 3)
    torch.testing.assert_close(one(*given), other(*given))


def test_residual_without_targets() -> None:
    one, other = both(GATConv, residual=True)
    given = (normal(NODES, WIDTH), None), pairs()
    torch.testing.assert_close(one(*given), other(*given))


def test_defaults_of_theirs_may_be_said() -> None:
    for kind in KINDS:
        kind(WIDTH, 2, aggr="add", flow="source_to_target", node_dim=0)


class Wrapped(nn.Module):
    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        found: Tensor = self.conv(x, edge_index)
        return found


HETERO: dict[str, Any] = {
    "to_hetero": {},
    "to_hetero_with_bases": {"num_bases": 2, "in_channels": {"x": 4}},
}


@pytest.mark.parametrize("transform", HETERO)
@pytest.mark.parametrize("kind", KINDS)
def test_to_hetero_is_refused(kind: Kind, transform: str) -> None:
    """The transform raises: for unknown layers, it would not add up results of edge types."""
    theirs = machine.package("torch_geometric.nn")
    metadata = ["a", "b"], [("a", "to", "b"), ("b", "to", "b"), ("a", "to", "a")]
    with pytest.raises(TypeError, match=rf"{kind.__name__}, which is no Mess.*HeteroConv"):
        getattr(theirs, transform)(Wrapped(kind(4, 4)), metadata, **HETERO[transform])


@pytest.mark.filterwarnings("ignore:There exist node types:UserWarning")
def test_hetero_conv_takes_them() -> None:
    theirs = machine.package("torch_geometric.nn")
    kinds = {
        ("a", "to", "b"): GATv2Conv(4, 3, add_self_loops=False),
        ("b", "to", "b"): GATConv(4, 3),
    }
    xs, edges = {x: torch.randn(5, 4) for x in "ab"}, torch.randint(0, 5, (2, 9))
    found = theirs.HeteroConv(kinds)(xs, dict.fromkeys(kinds, edges))["b"]
    one, other = kinds.values()
    torch.testing.assert_close(found, one((xs["a"], xs["b"]), edges) + other(xs["b"], edges))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_trace() -> None:
    """Edges of earlier calls do not become constants of a trace."""
    layer, x, index = GATv2Conv(WIDTH, 2, add_self_loops=False), torch.randn(NODES, WIDTH), pairs()
    layer(x, index)
    traced = torch.jit.trace(layer, (x, index))
    torch.testing.assert_close(traced(x, index.flip(0)), layer(x, index.flip(0)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
@pytest.mark.parametrize("kind", KINDS)
def test_export(kind: Kind) -> None:
    """An exported layer takes any number of nodes and edges."""
    layer, dim = kind(WIDTH, 2, heads=2).eval(), torch.export.Dim
    sizes = {"x": {0: dim("nodes", min=3)}, "edge_index": {1: dim("edges")}}
    given = torch.randn(NODES, WIDTH), pairs()
    exported = torch.export.export(layer, given, dynamic_shapes=sizes).module()
    x, index = torch.randn(40, WIDTH), torch.randint(40, (2, 90))
    torch.testing.assert_close(exported(x, index), layer(x, index))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
@pytest.mark.parametrize("kind", KINDS)
def test_compile(kind: Kind) -> None:
    options = {} if kind is TransformerConv else {"add_self_loops": False}
    layer = kind(WIDTH, 2, heads=2, edge_dim=3, **options)
    x, index = torch.randn(NODES, WIDTH), pairs()
    attr = torch.randn(index.shape[1], 3)
    found = torch.compile(layer, fullgraph=True)(x, index, attr)
    torch.testing.assert_close(found, layer(x, index, attr))


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "nodes": (
        lambda f: f(torch.ones(3, 4), pairs()),
        ValueError,
        r"x has shape \(3, 4\) for sources, expected \(nodes, 5\)",
    ),
    "range": (
        lambda f: f(torch.ones(3, 5), torch.tensor([[7], [0]])),
        ValueError,
        "edge_index has sources up to 7, expected nodes from 0 to 2",
    ),
    "targets": (
        lambda f: f(torch.ones(3, 5), torch.tensor([[0], [7]])),
        ValueError,
        "targets from 0 to 7",
    ),
    "index": (
        lambda f: f(torch.ones(3, 5), [[0], [1]]),
        TypeError,
        "expected a dense tensor of integers",
    ),
    "sparse": (
        lambda f: f(torch.ones(3, 5), torch.eye(3).to_sparse()),
        TypeError,
        r"edge_index is float32 \(torch.sparse_coo\), expected a dense tensor",
    ),
    "compressed": (
        lambda f: f(torch.ones(3, 5), torch.eye(3).to_sparse_csr()),
        TypeError,
        r"edge_index is float32 \(torch.sparse_csr\), expected a dense tensor",
    ),
    "transposed": (
        lambda f: f(torch.ones(3, 5), torch.zeros(4, 2).long()),
        ValueError,
        r"edge_index has shape \(4, 2\), expected \(2, edges\)",
    ),
    "boolean": (
        lambda f: f(torch.ones(3, 5), torch.ones(2, 2, dtype=torch.bool)),
        TypeError,
        "edge_index is bool, expected a dense tensor",
    ),
    "negative": (
        lambda f: GATv2Conv(5, 2, add_self_loops=False)(
            torch.ones(3, 5), torch.tensor([[-1], [0]])
        ),
        ValueError,
        "edge_index has sources from -1 to -1, expected integers from 0 on",
    ),
    "three": (lambda f: f((torch.ones(3, 5),) * 3, pairs()), TypeError, "expected a tensor"),
    "no nodes": (lambda f: f(None, pairs()), TypeError, "x is None"),
    "no targets": (
        lambda f: f((torch.ones(3, 5), None), pairs()),
        ValueError,
        "x has None for targets",
    ),
    "sizes": (
        lambda f: GATConv(5, 2)((torch.ones(3, 5), None), pairs(), size=(4, 3)),
        ValueError,
        r"size is \(4, 3\), but x has \(3, 3\) sources and targets",
    ),
    "lazy": (lambda f: GATv2Conv(-1, 2), ValueError, "widths are not found out at the first call"),
    "widths": (lambda f: GATv2Conv((5,), 2), ValueError, "in_channels must be a width or two"),
    "floats": (lambda f: f(torch.ones(3, 5), torch.ones(2, 2)), TypeError, "edge_index is float32"),
    "attr": (
        lambda f: f(torch.ones(3, 5), torch.zeros(2, 1).long(), torch.ones(1, 2)),
        ValueError,
        "make it with edge_dim=",
    ),
    "option": (lambda f: GATv2Conv(5, 2, aggr="max"), TypeError, "GATv2Conv takes no aggr"),
    "size": (lambda f: GATv2Conv(5, 0), ValueError, "out_channels must be ≥ 1"),
    "dropout": (lambda f: GATv2Conv(5, 2, dropout=1.0), ValueError, r"dropout must be in \[0, 1\)"),
    "fill": (
        lambda f: GATv2Conv(5, 2, edge_dim=1, fill_value="median")(
            torch.ones(3, 5), torch.zeros(2, 1).long(), torch.ones(1)
        ),
        ValueError,
        "fill_value must be a number",
    ),
    "no attr": (
        lambda f: GATv2Conv(5, 2, edge_dim=1)(torch.ones(3, 5), pairs()),
        ValueError,
        "edge_attr is missing",
    ),
    "integers of edges": (
        lambda f: GATv2Conv(5, 2, edge_dim=1)(
            torch.ones(3, 5), torch.zeros(2, 1).long(), torch.ones(1, 1).long()
        ),
        TypeError,
        "edge_attr is torch.int64, expected a tensor of floating point numbers",
    ),
    "one of three": (
        lambda f: GATv2Conv(5, 2, edge_dim=3)(
            torch.ones(3, 5), torch.zeros(2, 1).long(), torch.ones(1)
        ),
        ValueError,
        r"edge_attr has shape \(1,\), expected \(1, 3\)",
    ),
    "few": (
        lambda f: GATv2Conv(5, 2, edge_dim=1)(torch.ones(3, 5), pairs(), torch.ones(2)),
        ValueError,
        "one row for each edge",
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("wrong", WRONG)
def test_errors(wrong: str) -> None:
    make, kind, message = WRONG[wrong]
    with pytest.raises(kind, match=message):
        make(GATv2Conv(5, 2))
