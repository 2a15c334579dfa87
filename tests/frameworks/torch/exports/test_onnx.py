"""ONNX Runtime runs layers exported to ONNX, for other sizes, lengths and masks too."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from anyscore import Causal, Gaussian, attention
from anyscore import torch as layers
from anyscore.score import SCORES
from frameworks.torch.exports.exported_layers import MASKS, D, Scores, inputs

B, T_Q, T_K = Dim("B"), Dim("T_q"), Dim("T_k")
FEW = {"causal": ("dot", "concat"), "window": ("gatv2",)}
OTHERS = "trilinear", "additive"


def exported(model: nn.Module, args: tuple[Any, ...], dynamic: Any) -> Callable[..., list[Tensor]]:
    """Return the model as a function that ONNX Runtime runs."""
    program = torch.onnx.export(
        model.eval(), args, dynamo=True, dynamic_shapes=dynamic, verbose=False
    )
    assert program is not None
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [x.name for x in session.get_inputs()]

    def run(*xs: Tensor) -> list[Tensor]:
        feed = dict(zip(names, (x.numpy() for x in xs), strict=True))
        return [torch.from_numpy(x) for x in session.run(None, feed)]

    return run


@pytest.mark.parametrize(
    "mask",
    [pytest.param(x, marks=[pytest.mark.weekly][x in ("lengths", "boolean") :]) for x in MASKS],
)
def test_every_score(mask: str) -> None:
    """Every score exports, with empty rows and NaN in masked keys, for other sizes too."""
    model = Scores(mask, SCORES if mask == "lengths" else FEW.get(mask, OTHERS))
    dynamic = {0: B, 1: T_Q}, {0: B, 1: T_K}, {0: B, 1: T_K}, {0: B}, {0: B, 1: T_Q, 2: T_K}
    run = exported(model, tuple(inputs([0, 4], 3, 7)), dynamic)
    for xs in inputs([4, 0], 3, 7), inputs([9, 0, 5], 5, 11):
        if mask == "lengths":
            for x, n in zip(range(len(xs[3])), xs[3].tolist(), strict=True):
                xs[1][x, n:], xs[2][x, n:] = torch.nan, torch.inf
        expected = model(*xs)
        for name, x, y in zip(model.layers, run(*xs), expected, strict=True):
            torch.testing.assert_close(x, y.detach(), msg=lambda text, name=name: f"{name}: {text}")
        if mask in ("lengths", "causal", "window"):
            assert all((y[1] == 0).all() for y in run(*xs))


class Layers(nn.Module):
    """Model with an output for each layer."""

    def __init__(self, mask: Any) -> None:
        super().__init__()
        self.mask = mask
        self.of_three = nn.ModuleList(
            [
                layers.DotProductAttention(),
                layers.AdditiveAttention(5, query_size=D, key_size=D),
                layers.MLPAttention(5),
                layers.MultiHeadAttention(D, 2, kv_heads=1, score="additive"),
                layers.MultiHeadAttention(D, 2),
            ]
        )
        self.of_one = layers.SelfAttention(D, 3, project_output=True)

    def forward(self, x: Tensor, y: Tensor, n: Tensor) -> list[Tensor]:
        outputs = [layer(x, y, y, n, mask=self.mask) for layer in self.of_three]
        return [*outputs, self.of_one(x, n, mask=Causal())]


def test_every_layer() -> None:
    """Every layer exports with lengths and a causal mask."""
    model = Layers(Causal("end")).eval()
    x, y, n = torch.randn(2, 3, D), torch.randn(2, 7, D), torch.tensor([0, 4])
    model(x, y, n)  # some layers learn their sizes here
    run = exported(model, (x, y, n), ({0: B, 1: T_Q}, {0: B, 1: T_K}, {0: B}))
    for batch, queries, keys, lengths in (2, 3, 7, [7, 0]), (3, 5, 11, [11, 0, 2]):
        x, y, n = torch.randn(batch, queries, D), torch.randn(batch, keys, D), torch.tensor(lengths)
        for found, expected in zip(run(x, y, n), model(x, y, n), strict=True):
            torch.testing.assert_close(found, expected.detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    layer = layers.Attention("additive", hidden=5, d_q=D, d_k=D, dtype=dtype)
    x, n = torch.randn(2, 5, D).to(dtype), torch.tensor([0, 3])
    (found,) = exported(layer, (x, x + 1, x, n), None)(x, x + 1, x, n)
    torch.testing.assert_close(found, layer(x, x + 1, x, n).detach(), rtol=2e-3, atol=2e-3)


def test_a_call_with_weights_and_log_sum_exp() -> None:
    class Call(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, n: Tensor) -> Any:
            score = Gaussian(2.0)
            return attention(
                q, k, v, score=score, valid_lens=n, return_weights=True, return_lse=True
            )

    q, k, v, n, _ = inputs([0, 4], 3, 7)
    found = exported(Call(), (q, k, v, n), None)(q, k, v, n)
    torch.testing.assert_close(tuple(found), tuple(Call()(q, k, v, n)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # this exporter warns of itself
def test_by_the_older_exporter() -> None:
    layer = layers.MultiHeadAttention(D, 2, kv_heads=1, score="additive").eval()
    x, n, file = torch.randn(2, 5, D), torch.tensor([0, 3]), io.BytesIO()
    axes = {"x": {0: "B", 1: "T"}, "n": {0: "B"}}

    class Causally(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            return self.layer(x, x, x, n, mask=Causal())

    torch.onnx.export(
        Causally().eval(), (x, n), file, dynamo=False, input_names=list(axes), dynamic_axes=axes
    )
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    for batch, lengths in (2, [0, 3]), (3, [7, 0, 2]):
        x, n = torch.randn(batch, 7, D), torch.tensor(lengths)
        (found,) = session.run(None, {"x": x.numpy(), "n": n.numpy()})
        expected = layer(x, x, x, n, mask=Causal())
        torch.testing.assert_close(torch.from_numpy(found), expected.detach())
