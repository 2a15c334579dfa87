"""Files of PyTorch hold anyscore's objects: pickles, `torch.save` and exported programs."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anyscore import Edges, Sequences, Sigmoid, attention, make_cache
from anyscore.torch import ForwardAttention, LocationSensitive, Pointer
from frameworks.torch.exports.test_trees import B, D, T, objects


def tokens() -> Tensor:
    return torch.randn(B, T, D)


def all_objects() -> dict[str, Any]:
    """Return masks, biases, scores, prepared keys, and other arguments and results of calls."""
    x = tokens()
    edges = Edges(torch.tensor([0, 1, 3]), torch.tensor([0, 1, 1]))
    pointer = Pointer("additive", hidden=6, d_q=D, d_k=D)
    speech = [
        layer.step(x[:, 0], layer.start(x, x))
        for layer in (
            LocationSensitive(D, D, 6, filters=2, kernel=3),
            ForwardAttention(hidden=6, d_q=D, d_k=D),
        )
    ]
    return {
        **{name: made for name, (made, _) in objects().items()},
        "sequences": Sequences(torch.tensor([0, 2, 5])),
        "edges": edges,
        "terms of edges": edges.with_terms(torch.randn(3, D)),
        "sigmoid": Sigmoid(np.float32(0.25)),
        "cache": make_cache(x, x, capacity=T + 2),
        "output": attention(x, x, x, return_weights=True, return_lse=True),
        "location": speech[0],
        "forward": speech[1],
        "pointer": pointer.prepare_keys(x),
    }


def saved(made: Any) -> Any:
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


FILES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda made: pickle.loads(pickle.dumps(made)),
    "deepcopy": copy.deepcopy,
    "torch.save": saved,
}


def alike(found: Any, made: Any) -> None:
    """Assert that two objects have the same classes, structure and numbers."""
    leaves, structure = pytree.tree_flatten(found)
    expected, same = pytree.tree_flatten(made)
    assert structure == same
    for x, y in zip(leaves, expected, strict=True):
        assert type(x) is type(y)
        assert torch.equal(x, y) if isinstance(x, Tensor) else x == y or vars(x) == vars(y)


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("name", all_objects())
def test_written_and_read(name: str, form: str) -> None:
    made = pytree.tree_map_only(Tensor, Tensor.detach, all_objects()[name])
    alike(FILES[form](made), made)


class Through(nn.Module):
    """Module that returns an object beside the result of a call."""

    def forward(self, x: Tensor, made: Any) -> Any:
        return attention(x, x, x, return_weights=True), made


IN_PROGRAMS = [name for name in all_objects() if name not in ("list", "number")]


@pytest.mark.parametrize("name", IN_PROGRAMS)
def test_in_exported_programs(name: str) -> None:
    made = pytree.tree_map_only(Tensor, Tensor.detach, all_objects()[name])
    x, file = tokens(), io.BytesIO()
    torch.export.save(torch.export.export(Through(), (x, made)), file)
    file.seek(0)
    output, found = torch.export.load(file).module()(x, made)
    alike(found, made)
    alike(output, attention(x, x, x, return_weights=True))
