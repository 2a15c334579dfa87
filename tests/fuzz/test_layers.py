"""A layer that a library rewrote gives what the layer gives, or refuses the call in one line."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from anyscore import Causal, Gaussian, attention
from anyscore.torch import Attention, MultiHeadAttention, SelfAttention
from fuzz.fuzzing import Effort
from fuzz.hostile import is_announced

SCORES = (
    "dot", "scaled_dot", "gaussian", "laplace", "cosine", "additive", "gatv2", "concat", "bilinear",
)  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A layer and a call of it. padding: what stands in tokens beyond the lengths."""

    layer: str
    score: str
    heads: int
    kv_heads: int
    head_width: int
    tokens: int
    lengths: tuple[int, int] | None
    causal: bool
    padding: float
    seed: int

    @property
    def width(self) -> int:
        return self.heads * self.head_width

    def module(self) -> nn.Module:
        torch.manual_seed(self.seed)
        if self.layer == "Attention":
            hidden = {"hidden": 5} if self.score in ("additive", "gatv2", "concat") else {}
            return Attention(self.score, d_q=self.width, d_k=self.width, **hidden)
        if self.layer == "SelfAttention":
            return SelfAttention(self.width, self.head_width, score=self.score)
        return MultiHeadAttention(self.width, self.heads, kv_heads=self.kv_heads, score=self.score)

    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        with torch.device("cpu"):
            generator = torch.Generator().manual_seed(self.seed)
            query = torch.randn((2, self.tokens, self.width), generator=generator)
            lengths = None if self.lengths is None else torch.tensor(self.lengths)
        options: dict[str, Any] = {"mask": Causal()} if self.causal else {}
        x = query.clone()
        if self.lengths is not None:
            options["valid_lens"] = lengths
            for row, length in zip(x, self.lengths, strict=True):
                row[length:] = self.padding
        if self.layer == "SelfAttention":
            return (query,), options
        return (query, x, x), options

    def output(self, module: nn.Module) -> Tensor:
        inputs, options = self.arguments()
        return module(*inputs, **options)


@st.composite
def drawn_layers(draw: st.DrawFn, *layers: str) -> Drawn:
    kv_heads, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    score, length = draw(st.sampled_from(SCORES)), st.integers(0, tokens)
    groups = 1 if score in ("concat", "bilinear") else draw(st.integers(1, 2))
    return Drawn(
        draw(st.sampled_from(layers)),
        score,
        kv_heads * groups,
        kv_heads,
        draw(st.sampled_from((1, 3, 8))),
        tokens,
        draw(st.none() | st.tuples(length, length)),
        draw(st.booleans()),
        draw(st.sampled_from((0.0, 1e4, math.nan, math.inf))),
        draw(st.integers(0, 2**16)),
    )


def replica(module: nn.Module) -> nn.Module:
    """Return a replica as `DataParallel` makes it: no parameters, but tensors of a graph."""
    copied: nn.Module = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        if parameter is None:
            copied._parameters[name] = None
        else:
            setattr(copied, name, parameter.view_as(parameter))
    for name, child in module._modules.items():
        copied._modules[name] = child and replica(child)
    return copied


def of_two_bases(module: nn.Module) -> nn.Module:
    """Set a class of two bases, as FSDP2 does."""

    class Mixin:
        pass

    module.__class__ = type("Sharded", (Mixin, type(module)), {})
    return module


def parametrized(module: nn.Module) -> nn.Module:
    for part in [*module.modules()]:
        if isinstance(part, nn.Linear):
            nn.utils.parametrizations.weight_norm(part)
    return module


def from_file(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def from_state(module: nn.Module) -> nn.Module:
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    other.load_state_dict(module.state_dict())
    return other


REWRITINGS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "replica": replica,
    "class": of_two_bases,
    "weight norm": parametrized,
    "copy": copy.deepcopy,
    "file": from_file,
    "state": from_state,
    "another default device": lambda module: module,
}
LAYERS = "Attention", "MultiHeadAttention", "SelfAttention"


def test_rewritten_layers(effort: Effort) -> None:
    """Outputs and gradients are those of the layer; NaN in padding reaches neither."""
    drawn = st.tuples(drawn_layers(*LAYERS), st.sampled_from(sorted(REWRITINGS)))
    effort.spend(lambda x: check_rewritten(*x), drawn, examples=150, share=0.05)


def check_rewritten(drawn: Drawn, rewriting: str) -> None:
    expected, slopes = _answer(drawn, plain := drawn.module(), plain)
    assert all(x.isfinite().all() for x in (expected, *slopes))
    module = drawn.module()
    rewritten = REWRITINGS[rewriting](module)
    leaves = module if rewriting == "replica" else rewritten
    with torch.device("meta" if rewriting == "another default device" else "cpu"):
        output, gradients = _answer(drawn, rewritten, leaves)
    torch.testing.assert_close(output, expected)
    if rewriting != "weight norm":  # which has other parameters
        torch.testing.assert_close(gradients, slopes)


def _answer(drawn: Drawn, module: nn.Module, leaves: nn.Module) -> tuple[Tensor, list[Tensor]]:
    """Return the output, and gradients of the sum of its squares by the parameters of `leaves`."""
    output = drawn.output(module)
    parameters = list(leaves.parameters())
    slopes = torch.autograd.grad(output.square().sum(), parameters) if parameters else ()
    return output, list(slopes)


def test_parallel_projections(effort: Effort) -> None:
    """The heads of two ranks add up to the layer, or a score with parameters per head says so."""
    layers = drawn_layers("MultiHeadAttention").filter(lambda x: x.kv_heads > 1)
    drawn = layers.flatmap(lambda x: st.tuples(st.just(x), st.integers(1, x.kv_heads - 1)))
    effort.spend(lambda x: check_parts(*x), drawn, examples=60, share=0.05)


def check_parts(drawn: Drawn, kept: int) -> None:
    module = drawn.module()
    assert isinstance(module, MultiHeadAttention)
    try:
        parts = [
            drawn.output(some_heads(module, drawn, slice(*ends)))
            for ends in ((0, kept), (kept, drawn.kv_heads))
        ]
    except ValueError as error:
        if not is_announced(error) or drawn.score in ("dot", "scaled_dot"):
            raise
        return
    torch.testing.assert_close(parts[0] + parts[1] - module.W_o.bias, drawn.output(module))


def some_heads(module: MultiHeadAttention, drawn: Drawn, heads: slice) -> MultiHeadAttention:
    """Return a layer with the projections of some heads of keys, as a rank leaves them."""
    part, groups = copy.deepcopy(module), drawn.heads // drawn.kv_heads
    for name, times in (("W_q", groups), ("W_k", 1), ("W_v", 1)):
        rows = slice(*(n * times * drawn.head_width for n in (heads.start, heads.stop)))
        linear = getattr(part, name)
        linear.weight, linear.bias = (nn.Parameter(x[rows]) for x in (linear.weight, linear.bias))
    columns = slice(*(n * groups * drawn.head_width for n in (heads.start, heads.stop)))
    part.W_o.weight = nn.Parameter(part.W_o.weight[:, columns])
    return part


REPLACED: dict[str, Any] = {
    "object": Gaussian(5.0),
    "callable": lambda q, k: -(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1) / 50,
    "number": 3.0,
    "name": "gaussian",
    "class": Gaussian,
}


def test_replaced_scores(effort: Effort) -> None:
    """A layer obeys a score or a function in the place of its own, and refuses another thing."""
    drawn = st.tuples(drawn_layers("Attention"), st.sampled_from(sorted(REPLACED)), st.booleans())
    effort.spend(lambda x: check_replaced(*x), drawn, examples=60, share=0.05)


def check_replaced(drawn: Drawn, what: str, called: bool) -> None:
    if what in ("name", "class") and drawn.score == "gaussian":  # nothing is replaced
        return
    module, (inputs, options) = drawn.module(), drawn.arguments()
    if called:
        drawn.output(module)
    try:
        module.score = REPLACED[what]
        output = drawn.output(module)
    except (TypeError, ValueError) as error:
        if not is_announced(error) or what in ("object", "callable"):
            raise
        return
    assert what in ("object", "callable")
    expected = attention(*inputs, score=Gaussian(5.0), **options)
    torch.testing.assert_close(output, expected)
