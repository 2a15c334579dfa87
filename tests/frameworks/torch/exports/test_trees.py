"""Masks, prepared keys and scores are arguments of transforms, compiled calls and exports."""

from __future__ import annotations

import io
import operator
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils import _pytree as pytree

from anyscore import (
    Additive,
    ALiBi,
    Causal,
    Gaussian,
    Interval,
    Keys,
    Lengths,
    Mask,
    Relative,
    ScaledDot,
    Window,
    attention,
    prepare_keys,
)
from anyscore.masks.objects import BooleanMask
from anyscore.ops.pytrees import TREES, flatten, unflatten
from anyscore.score import SCORES
from helpers.hang import HANG
from helpers.samples import NAMES
from helpers.table_masks import MASKS
from helpers.table_scores import ROWS
from helpers.table_shapes import SHAPES
from helpers.transformed import torch_score

B, T, D = 3, 5, 4


@pytest.fixture
def x() -> Tensor:
    return torch.randn(B, T, D)


def additive() -> Additive:
    return Additive(torch.randn(7, D), torch.randn(7, D), torch.randn(7))


def masks_of_the_table() -> dict[str, tuple[Any, int]]:
    """Return the mask objects of the table, each with its number of children."""
    found = {}
    for name, case in MASKS.items():
        mask = case.make(SHAPES["heads"], np.random.default_rng(0), torch.tensor)
        if isinstance(mask, Mask) and not hasattr(mask, "masks"):
            children = [x for field, x in vars(mask).items() if field not in mask.static]
            found[f"mask {name}"] = mask, sum(x is not None for x in children)
    return found


def objects() -> dict[str, tuple[Any, int]]:
    """Return at least one object of each class of `TREES`, each with its number of leaves."""
    n, keep, w = torch.tensor([0, 2, 5]), torch.ones(B, T, dtype=torch.bool), torch.randn(D)
    return {
        **masks_of_the_table(),
        "lengths": (Lengths(n), 1),
        "list": (Lengths([1, 2, 3]), 3),
        "number": (Lengths(3), 1),
        "keys": (Keys(keep), 1),
        "keep": (BooleanMask(keep[:, None]), 1),
        "interval": (Interval(n, n + 2), 2),
        "half an interval": (Interval(stop=n), 1),
        "window": (Window(2, None, "end"), 0),
        "causal": (Causal(), 0),
        "offset": (Causal(offset=n), 1),
        "all": (Causal("end") & Lengths(n) & keep[:, None], 2),
        **{name: (torch_score(name), len(ROWS[name].sample)) for name in NAMES},
        "biased": (Additive(None, None, w, bias=w), 2),
        "number of a score": (Gaussian(2.0), 0),
        "relative": (Relative(torch.randn(2, 5), align="end"), 1),
        "alibi": (ALiBi(torch.ones(2)), 1),
        "scale of a score": (ScaledDot(torch.tensor(0.3)), 1),
        "prepared": (prepare_keys(torch.randn(B, T, D), additive()), 3),
    }


@pytest.mark.parametrize("name", objects())
def test_there_and_back(name: str) -> None:
    made, leaves = objects()[name]
    found, spec = pytree.tree_flatten(made)
    assert len(found) == leaves
    again = pytree.tree_unflatten(found, spec)
    assert type(again) is type(made)
    assert vars(again).keys() == vars(made).keys()
    assert all(map(operator.is_, pytree.tree_leaves(again), found))
    assert hash(flatten(made)[1]) == hash(flatten(again)[1])
    dumped = pytree.treespec_dumps(spec)
    assert pytree.treespec_loads(dumped) == spec


def test_every_class_is_tried() -> None:
    def classes(x: Any) -> set[type]:
        return {type(x)}.union(*map(classes, getattr(x, "masks", ())))

    tried = ".masks.objects", ".masks.sequences", ".call.prepared", ".modifiers.biases"
    named = {cls for cls in TREES if cls.__module__.endswith(tried)}
    named |= set(SCORES.values())
    assert set().union(*(classes(x) for x, _ in objects().values())) == named


def test_structure_tells_apart() -> None:
    specs = [
        pytree.tree_structure(x) for x in (Causal(), Causal("end"), Window(1, 0), Window(2, 0))
    ]
    assert all(one != other for i, one in enumerate(specs) for other in specs[:i])


def test_what_stands_for_children_is_not_checked() -> None:
    """Frameworks may replace children by anything."""
    made = Window(2, 1, offset=torch.tensor([1, 2]))
    _, structure = flatten(made)
    thing = object()
    again = unflatten(Window, structure, [thing])
    assert again.offset is thing
    assert (again.left, again.right, again.align) == (2, 1, None)


@pytest.mark.parametrize("align", ["start", "end"])
def test_vmap_over_masks(x: Tensor, align: str) -> None:
    n = torch.tensor([0, 2, 5])
    mask = Causal(align) & Lengths(n)
    found = vmap(lambda x, m: attention(x, x, x, mask=m))(x, mask)
    torch.testing.assert_close(found, attention(x, x, x, mask=mask))
    keep = torch.rand(B, T) > 0.5
    found = vmap(lambda m: attention(x[0], x[0], x[0], mask=m))(Keys(keep))
    same = x[:1].expand(B, T, D)
    torch.testing.assert_close(found, attention(same, same, same, mask=keep[:, None]))
    shared = vmap(lambda x, m: attention(x, x, x, mask=m), in_dims=(0, None))(x, Lengths(2))
    torch.testing.assert_close(shared, attention(x, x, x, valid_lens=2))


def test_vmap_over_prepared_keys(x: Tensor) -> None:
    score = additive()
    prepared = prepare_keys(x, score)
    found = vmap(lambda q, p: attention(q, p, p.key, score=score))(x, prepared)
    torch.testing.assert_close(found, attention(x, x, x, score=score))


def test_vmap_and_grad_over_scores(x: Tensor) -> None:
    scores = Additive(torch.randn(2, 7, D), torch.randn(2, 7, D), torch.randn(2, 7))
    one, other = (scores.map(lambda w, i=i: w[i]) for i in (0, 1))
    found = vmap(lambda s: attention(x, x, x, score=s))(scores)
    expected = [attention(x, x, x, score=s) for s in (one, other)]
    torch.testing.assert_close(found, torch.stack(expected))
    gradient = grad(lambda s: attention(x, x, x, score=s).square().sum())(one)
    leaves = one.map(lambda w: w.requires_grad_())
    attention(x, x, x, score=leaves).square().sum().backward()
    for name, w in leaves.tensors().items():
        torch.testing.assert_close(getattr(gradient, name), w.grad)
    assert gradient.bias is None


class Masked(nn.Module):
    def forward(self, x: Tensor, mask: Any) -> Tensor:
        return attention(x, x, x, mask=mask)


def test_export_takes_masks(x: Tensor) -> None:
    """An export with masks can be saved and loaded, for other lengths and batches."""
    batch, n = torch.export.Dim("batch"), torch.tensor([0, 2, 5])
    program = torch.export.export(
        Masked(),
        (x, Causal() & Lengths(n)),
        dynamic_shapes={"x": {0: batch}, "mask": [([], [{0: batch}])]},
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    more, mask = torch.randn(B + 1, T, D), Causal() & Lengths(torch.tensor([5, 1, 0, 3]))
    torch.testing.assert_close(loaded(more, mask), attention(more, more, more, mask=mask))


def test_export_takes_prepared_keys(x: Tensor) -> None:
    score = additive()

    class Decoder(nn.Module):
        def forward(self, q: Tensor, keys: Any) -> Tensor:
            return attention(q, keys, keys.key, score=score)

    program = torch.export.export(Decoder(), (x, prepare_keys(torch.randn(B, T, D), score)))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    more = torch.randn(B, T, D)
    found = torch.export.load(file).module()(x, prepare_keys(more, score))
    torch.testing.assert_close(found, attention(x, more, more, score=score))


def test_compiled_calls_take_masks(x: Tensor) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(Masked(), backend="aot_eager", fullgraph=True)
    for n in ([0, 2, 5], [4, 1, 0]):
        mask = Causal() & Lengths(torch.tensor(n))
        torch.testing.assert_close(compiled(x, mask), attention(x, x, x, mask=mask))
    torch._dynamo.reset()


def test_numpy_arrays_are_children_too() -> None:
    (n,), structure = flatten(Lengths(np.array([1, 2])))
    assert n.tolist() == [1, 2]
    assert structure == (("n",), ())


IMPORTS = {
    "PyTorch first": "import torch; from anyscore import Lengths",
    "layers": "from anyscore import Lengths; import anyscore.torch, torch",
    "a call": (
        "from anyscore import Lengths, attention; import torch; x = torch.ones(2, 3); "
        "attention(x, x, x)"
    ),
}


@pytest.mark.parametrize("order", IMPORTS)
def test_when_they_are_registered(order: str) -> None:
    code = IMPORTS[order] + (
        "; from torch.utils import _pytree as p; n = torch.tensor([1, 2])"
        "; assert p.tree_leaves(Lengths(n))[0] is n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG)
