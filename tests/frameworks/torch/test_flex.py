"""`flex_attention` agrees with PyTorch's for the usual mods, in values and in gradients."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex

import anyscore
from anyscore import Additive, Euclidean, GATv2, Laplace, StudentT
from anyscore.masks.objects import BooleanMask, Interval
from anyscore.torch import flex_attention
from anyscore.torch.flex import attention as module
from helpers import machine
from helpers.budget import BAND, EPS, assert_within_budget, size
from helpers.flex import assert_same, eager, gradients, ours

pytestmark = pytest.mark.sample

B, H, KEY_HEADS, T_Q, T_K, D, D_V = 2, 4, 2, 13, 19, 5, 3
LOW = -math.inf
Mod = Callable[..., Any]


class Tables:
    """Tensors that mods capture; those of floating point have gradients."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(5)

        def made(*shape: int) -> Tensor:
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
            return x.to(dtype).requires_grad_()

        self.slopes, self.relative, self.heads = made(H), made(H, T_Q + T_K), made(H)
        self.batches, self.keys, self.queries = made(B), made(B, T_K), made(T_Q)
        self.full, self.one = made(H, T_Q, T_K), made()
        self.documents = torch.tensor([0] * 5 + [1] * 3 + [2] * 11)
        self.lengths, self.prefix = torch.tensor([11, 17]), torch.tensor([4, 0])
        self.windows = torch.tensor([1, 3, 5, 40])

    def leaves(self) -> list[Tensor]:
        return [x for x in vars(self).values() if x.requires_grad]


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def natten(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Neighbours within one row and two columns of a grid of width 5."""
    return ((i // 5 - j // 5).abs() <= 1) & ((i % 5 - j % 5).abs() <= 2)


def capped(s: Any, cap: float = 2.0) -> Any:
    return cap * torch.tanh(s / cap)


def bucket(i: Any, j: Any) -> Any:
    """Return the bucket of T5 of a distance, one of 8 on each side."""
    far = (i - j).abs()
    steps = torch.log(far.float().clamp(min=1) / 4) / math.log(16 / 4) * 4
    large = torch.minimum(4 + steps.to(torch.long), torch.full_like(far, 7))
    return torch.where(j > i, 8, 0) + torch.where(far < 4, far, large)


MASKS: dict[str, tuple[type, Callable[[Tables], Mod]]] = {
    "causal": (Interval, lambda t: causal),
    "sliding window": (Interval, lambda t: lambda b, h, i, j: (i >= j) & (i - j <= 4)),
    "both sides": (Interval, lambda t: lambda b, h, i, j: (i - j).abs() <= 3),
    "prefix LM": (Interval, lambda t: lambda b, h, i, j: (j < t.prefix[b]) | (i >= j)),
    "documents": (Interval, lambda t: lambda b, h, i, j: t.documents[i] == t.documents[j]),
    "causal documents": (
        Interval, lambda t: lambda b, h, i, j: (t.documents[i] == t.documents[j]) & (i >= j),
    ),
    "lengths": (Interval, lambda t: lambda b, h, i, j: j < t.lengths[b]),
    "a negation": (Interval, lambda t: lambda b, h, i, j: (-(i - j) <= 0) & (-i >= -j - 4)),
    "windows of heads": (Interval, lambda t: lambda b, h, i, j: (i - j).abs() < t.windows[h]),
    "chunks": (Interval, lambda t: lambda b, h, i, j: i // 4 == j // 4),
    "from the third key": (Interval, lambda t: lambda b, h, i, j: torch.logical_not(j < 2)),
    "some queries": (Interval, lambda t: lambda b, h, i, j: (i % 3 > 0) & (i >= j)),
    "a number": (Interval, lambda t: lambda b, h, i, j: (t.lengths[0] > j) & (j >= 2)),
    "all": (Interval, lambda t: lambda b, h, i, j: torch.ones_like(i, dtype=torch.bool)),
    "none": (Interval, lambda t: lambda b, h, i, j: j < 0),
    "dilated": (BooleanMask, lambda t: lambda b, h, i, j: ((i - j) % 3 == 0) & (i - j <= 8)),
    "sinks": (BooleanMask, lambda t: lambda b, h, i, j: (i >= j) & ((j < 2) | (i - j <= 3))),
    "NATTEN": (BooleanMask, lambda t: natten),
    "odd keys": (BooleanMask, lambda t: lambda b, h, i, j: j % 2 == 1),
    "some heads": (BooleanMask, lambda t: lambda b, h, i, j: (h == 1) | torch.ne(j, 3)),
    "xor": (Interval, lambda t: lambda b, h, i, j: (i > j) ^ (j < 3)),
}  # fmt: skip
"""Masks by name: the kind of mask that is recognised, and the mask_mod."""

FITTING: dict[str, Callable[[Tables], Mod]] = {
    "none": lambda t: lambda s, b, h, i, j: s,
    "ALiBi": lambda t: lambda s, b, h, i, j: s + t.slopes[h] * (j - i),
    "ALiBi of an exponent": lambda t: lambda s, b, h, i, j: (
        s + torch.exp2(-((h + 1) * 8.0 / H)) * (j - i)
    ),
    "relative": lambda t: lambda s, b, h, i, j: s + (i - j),
    "relative, negated": lambda t: lambda s, b, h, i, j: s + t.slopes[h] * -(i - j + 2),
    "no distance": lambda t: lambda s, b, h, i, j: s + t.slopes[h] * (-i - j),
    "negative slope": lambda t: lambda s, b, h, i, j: s - 0.3 * torch.abs(i - j),
    "squared distance": lambda t: lambda s, b, h, i, j: s - (i - j) ** 2 / 50,
    "not linear": lambda t: lambda s, b, h, i, j: s + 0.5 * (i // 4 - j // 4),
    "tanh softcap": lambda t: lambda s, b, h, i, j: capped(s),
    "negative softcap": lambda t: lambda s, b, h, i, j: -2 * torch.tanh(s / 3 + 0.1 * j),
    "softcap, then ALiBi": lambda t: lambda s, b, h, i, j: capped(s) + t.slopes[h] * (j - i),
    "ALiBi, then softcap": lambda t: lambda s, b, h, i, j: capped(s + t.slopes[h] * (j - i), 5.0),
    "keys and distances": lambda t: lambda s, b, h, i, j: (
        s - t.keys[b, j] + 0.2 * (i - j) + t.heads[h] - t.relative[h, i - j + T_K - 1]
    ),
    "Transformer-XL": lambda t: lambda s, b, h, i, j: s + t.relative[h, i - j + T_K - 1],
    "clipped distances": lambda t: lambda s, b, h, i, j: (
        s + t.relative[h, torch.clamp(i - j, min=-3, max=3) + 3]
    ),
    "T5": lambda t: lambda s, b, h, i, j: s + t.relative[h, bucket(i, j)],
    "at least": lambda t: lambda s, b, h, i, j: (
        s + torch.maximum(torch.full_like(s, -1.5), 0.5 * (i - j))
    ),
    "negative indices": lambda t: lambda s, b, h, i, j: s + t.relative[h, i - j],
    "heads": lambda t: lambda s, b, h, i, j: s + t.heads[h],
    "batches": lambda t: lambda s, b, h, i, j: s + t.batches[b] * j,
    "keys": lambda t: lambda s, b, h, i, j: s + t.keys[b, j],
    "queries": lambda t: lambda s, b, h, i, j: t.queries[i] - s,
    "table": lambda t: lambda s, b, h, i, j: s + t.full[h, i, j],
    "temperature": lambda t: lambda s, b, h, i, j: s * t.heads[h],
    "learned temperature": lambda t: lambda s, b, h, i, j: t.one * s + t.one,
    "temperature of queries": lambda t: lambda s, b, h, i, j: -s * torch.log2(i + 2.0),
    "factor 0": lambda t: lambda s, b, h, i, j: 0 * s + t.keys[b, j],
    "numbers of tensors": lambda t: lambda s, b, h, i, j: s * torch.tensor(0.7) + t.windows[2],
    "comparisons": lambda t: lambda s, b, h, i, j: (
        s + (i < j - 2) * t.one - 0.5 * torch.eq(2 * i, j) + (i.ne(j) & (h <= 3)) + (i <= i)
    ),
    "boolean bias": lambda t: lambda s, b, h, i, j: s + (i > j) - 2.5 * (j == 3),
    "large integers": lambda t: lambda s, b, h, i, j: s + (i * 50_000_001 - j * 50_000_000),
    "causal": lambda t: lambda s, b, h, i, j: torch.where(i >= j, s, LOW),
    "causal, full_like": lambda t: lambda s, b, h, i, j: torch.where(
        i < j, torch.full_like(s, fill_value=LOW), s
    ),
    "causal, tensor": lambda t: lambda s, b, h, i, j: torch.where(i >= j, s, torch.tensor(LOW)),
    "causal, masked_fill": lambda t: lambda s, b, h, i, j: s.masked_fill(i < j, LOW),
    "causal, method": lambda t: lambda s, b, h, i, j: s.where(i >= j, torch.tensor(LOW)),
    "causal, added": lambda t: lambda s, b, h, i, j: s + torch.where(i + 1 > j, 0.0, LOW),
    "gaps, added": lambda t: lambda s, b, h, i, j: s + torch.where((i + j) % 3 == 1, 0.0, LOW),
    "empty rows": lambda t: lambda s, b, h, i, j: torch.where(i > j, 2 * s, float("-inf")),
    "flag": lambda t: lambda s, b, h, i, j: torch.where(torch.tensor(False), LOW, s),
    "window, causal, ALiBi": lambda t: lambda s, b, h, i, j: torch.where(
        torch.logical_and(i >= j, ~(i - j > 6)), s + t.slopes[h] * (j - i), LOW
    ),
    "all of them": lambda t: lambda s, b, h, i, j: torch.where(
        i >= j, torch.where(j != 2, capped(t.heads[h] * s) + t.slopes[h] * (j - i), LOW), LOW
    ),
    "square": lambda t: lambda s, b, h, i, j: s * s,
    "square by a power": lambda t: lambda s, b, h, i, j: 0.3 * s**2 - s,
    "square of a bias": lambda t: lambda s, b, h, i, j: (
        (s + t.keys[b, j]).square() / 4 - 1
    ),
    "bias of a square": lambda t: lambda s, b, h, i, j: s.square() / 4 - t.slopes[h] * (i - j),
    "cosine": lambda t: lambda s, b, h, i, j: torch.cos(s) + t.heads[h],
    "sigmoid": lambda t: lambda s, b, h, i, j: (2 * s).sigmoid(),
    "two softcaps": lambda t: lambda s, b, h, i, j: capped(capped(s) * 3),
    "tanh by a fraction": lambda t: lambda s, b, h, i, j: (
        2 * (s / 2) * (27 + (s / 2) ** 2) / (27 + 9 * (s / 2) ** 2)
    ),
    "activations": lambda t: lambda s, b, h, i, j: (
        F.gelu(s) + F.relu(s) + F.silu(s) + F.softplus(9 * s) + F.leaky_relu(s, 0.1)
        + F.gelu(s, approximate="tanh") + torch.expm1(s.clamp(max=1)) + s.clamp(-0.5, 2)
    ),
    "branches": lambda t: lambda s, b, h, i, j: torch.where(
        i >= j, torch.where(s > 0, s, torch.exp(s) - 1) * t.heads.shape[0], LOW
    ),
    "greater and less": lambda t: lambda s, b, h, i, j: (
        torch.maximum(s, torch.tensor(0.0)) + torch.minimum(s, -s) - torch.reciprocal(1 + s * s)
    ),
    "factor inside": lambda t: lambda s, b, h, i, j: -torch.log1p((s * t.heads[h]) ** 2),
    "parts": lambda t: functools.partial(
        lambda s, b, h, i, j, factor: factor * s, factor=0.3
    ),
}  # fmt: skip


@torch.library.custom_op("approx::tanh", mutates_args=())
def _tanh(x: Tensor) -> Tensor:
    return torch.tanh(x)


class ApproximateTanh(torch.autograd.Function):
    """A tanh as attention-gym has it: an operation of a GPU that approximates, tanh elsewhere."""

    @staticmethod
    def forward(x: Any) -> Any:
        return torch.ops.approx.tanh(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return torch.tanh(x), 0


BESIDE_JAX = """
import jax, torch
from anyscore.torch import flex_attention
x = torch.ones(1, 1, 2, 3)
for power in (2, 3, 2):
    flex_attention(x, x, x, lambda score, *positions: score**power)
"""


@pytest.mark.slow
def test_functions_of_one_score_have_names_of_their_own() -> None:
    """JAX, once it is imported, knows each class of scores by its name."""
    machine.package("jax")
    done = subprocess.run([sys.executable, "-c", BESIDE_JAX], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_the_approximate_tanh_of_attention_gym_is_a_softcap() -> None:
    xs = inputs()
    found, warned = ours(*xs, lambda s, *at: 2.0 * ApproximateTanh.apply(s / 2.0))
    assert not warned
    assert_same(found, eager(*xs, FITTING["tanh softcap"](Tables())))


UNFIT: dict[str, tuple[str, Callable[[Tables], Mod]]] = {
    "two branches": ("more than once", lambda t: lambda s, b, h, i, j: (
        torch.where(i > j, s, s - 1)
    )),
    "root": (r"sqrt\(abs\(score\)\)", lambda t: lambda s, b, h, i, j: s.abs().sqrt()),
    "no formula": (r"lgamma\(", lambda t: lambda s, b, h, i, j: torch.lgamma(s * s + 1)),
    "square of a softcap, a bias inside": ("before and after", lambda t: lambda s, b, h, i, j: (
        capped(s + t.keys[b, j]).square() + t.heads[h]
    )),
    "mask inside": ("-inf", lambda t: lambda s, b, h, i, j: (
        torch.sigmoid(torch.where(i >= j, s, LOW))
    )),
    "temperature of keys": ("kv_idx", lambda t: lambda s, b, h, i, j: s * t.keys[b, j]),
    "bias times heads": ("add the bias afterwards", lambda t: lambda s, b, h, i, j: (
        (s + t.keys[b, j]) * t.heads[h]
    )),
    "learned softcap": ("one softcap fits", lambda t: lambda s, b, h, i, j: (
        t.one * torch.tanh(s / 2)
    )),
    "learned softcap inside": ("divides", lambda t: lambda s, b, h, i, j: torch.tanh(s / t.one)),
    "a low number": ("-inf", lambda t: lambda s, b, h, i, j: (
        torch.where(i >= j, s, torch.finfo(s.dtype).min)
    )),
    "masked before the cap": ("-inf", lambda t: lambda s, b, h, i, j: (
        capped(torch.where(i >= j, s, LOW))
    )),
    "biases around softcap": ("before and after", lambda t: lambda s, b, h, i, j: (
        capped(s - t.keys[b, j] + 0.2 * (i - j)) + t.heads[h] - t.relative[h, i - j + T_K - 1]
    )),
    "biases around a softcap of factors": ("before and after", lambda t: lambda s, b, h, i, j: (
        capped(s * t.heads[h] - t.keys[b, j]) + t.relative[h, i - j + T_K - 1]
    )),
    "a constant": ("does not depend", lambda t: lambda s, b, h, i, j: torch.zeros_like(s)),
    "keys only": ("does not depend", lambda t: lambda s, b, h, i, j: t.keys[b, j]),
}  # fmt: skip
"""Mods that the kernels cannot hold: words of the warning, and the score_mod."""


def inputs(dtype: torch.dtype = torch.float64, queries: int = T_Q) -> list[Tensor]:
    shapes = (B, H, queries, D), (B, KEY_HEADS, T_K, D), (B, KEY_HEADS, T_K, D_V)
    return [torch.randn(x, dtype=torch.float64).to(dtype).requires_grad_() for x in shapes]


@pytest.mark.parametrize("name", FITTING)
def test_mods_that_fit(name: str) -> None:
    tables, xs = Tables(), inputs()
    leaves = [*xs, *tables.leaves()]
    mod = FITTING[name](tables)
    expected = eager(*xs, mod)
    found, warned = ours(*xs, mod)
    assert not warned
    assert_same(found, expected)
    assert_same(gradients(found, leaves), gradients(expected, leaves), "gradients")


@pytest.mark.parametrize("name", UNFIT)
def test_mods_that_do_not_fit(name: str) -> None:
    """The warning names the part, once and at the caller; results and gradients are right."""
    tables, xs = Tables(), inputs()
    leaves = [*xs, *tables.leaves()]
    words, make = UNFIT[name]
    mod = make(tables)
    expected = eager(*xs, mod)
    with pytest.warns(UserWarning, match=words) as seen:
        found = flex_attention(*xs, mod, enable_gqa=True, return_lse=True)
    assert [x.filename for x in seen] == [__file__]
    if name == "a constant":  # PyTorch computes in float32, as zeros_like of no score
        expected = tuple(x.double() for x in expected)
    assert_same(found, expected)
    assert_same(gradients(found, leaves), gradients(expected, leaves), "gradients")


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    kind, make = MASKS[name]
    tables, xs = Tables(), inputs()
    mask_mod = make(tables)
    expected = eager(*xs, None, mask_mod)
    found, _ = ours(*xs, block_mask=mask_mod)
    assert_same(found, expected)
    assert_same(gradients(found, xs), gradients(expected, xs), "gradients")
    if name == "none":
        assert (found[0] == 0).all()
        assert (found[1] == LOW).all()
    assert received(*xs, block_mask=mask_mod)["mask"].__class__ is kind


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name",
    [
        "ALiBi",
        "keys and distances",
        "temperature",
        "all of them",
        "large integers",
        "causal, added",
    ],
)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    tables, xs = Tables(dtype), inputs(dtype)
    leaves = [*xs, *tables.leaves()]
    exact_tables, exact_xs = Tables(), [x.detach().double().requires_grad_() for x in xs]
    for x, y in zip(exact_tables.leaves(), tables.leaves(), strict=True):
        x.data = y.detach().double()
    exact = eager(*exact_xs, FITTING[name](exact_tables), causal)
    plain = eager(*xs, FITTING[name](tables), causal)
    found, warned = ours(*xs, FITTING[name](tables), block_mask=causal)
    assert not warned
    assert found[0].dtype == dtype
    assert found[1].dtype == torch.float32
    all_of = [
        [*x, *gradients(x, of)]
        for x, of in (
            (found, leaves),
            (exact, [*exact_xs, *exact_tables.leaves()]),
            (plain, leaves),
        )
    ]
    for x, y, z in zip(*all_of, strict=True):
        exact_x, band = y.detach().numpy(), None
        if x is found[1] and dtype == torch.bfloat16 and name in ("temperature", "all of them"):
            band = BAND * size(exact_x) * EPS["bfloat16"] / EPS["float32"]  # of query · factor
        assert_within_budget(x, exact_x, z, band=band)


def test_modules_are_mods() -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(H, T_Q + T_K, dtype=torch.float64))
            self.factor = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

        def forward(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return self.factor * s + self.table[h, i - j + T_K]

    mod, xs = Learned(), inputs()
    leaves = [*xs, *mod.parameters()]
    expected = eager(*xs, mod)
    found, warned = ours(*xs, mod)
    assert not warned
    assert_same(found, expected)
    assert_same(gradients(found, leaves), gradients(expected, leaves), "gradients")


def test_partial_indices_and_their_gradients() -> None:
    """PyTorch has no gradients of such tables, so a matrix is the oracle."""
    t, xs = Tables(), inputs()

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + t.full[h][i][j] + t.relative[..., i][h] + t.full[:, i, j].sum()

    q, k, v = xs[0], *(x.repeat_interleave(H // KEY_HEADS, 1) for x in xs[1:])
    s = q @ k.mT / math.sqrt(D) + t.full + t.relative[:, :T_Q, None] + t.full.sum(0)
    expected = s.softmax(-1) @ v, s.logsumexp(-1)
    found, warned = ours(*xs, mod)
    assert not warned
    assert_same(found, expected)
    leaves = [*xs, t.full, t.relative]
    assert_same(gradients(found, leaves), gradients(expected, leaves), "gradients")


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, i, j: s + LOW * (i < j),  # 0 · ∞
        lambda s, b, h, i, j: s / 0.0,
        lambda s, b, h, i, j: s * math.inf,
    ],
)
def test_no_number_is_nan_as_in_pytorch(mod: Mod) -> None:
    xs = [x.detach() for x in inputs()]
    expected = eager(*xs, mod)
    found, _ = ours(*xs, mod)
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x.isfinite(), y.isfinite())
    assert found[0].isnan().any()


def test_captured_tensors_are_read_anew() -> None:
    t, xs = Tables(), [x.detach() for x in inputs()]
    mod: Mod = lambda s, b, h, i, j: t.heads[h] * s + t.slopes[h] * (j - i)  # noqa: E731
    before = flex_attention(*xs, mod, lambda b, h, i, j: j < t.lengths[b], enable_gqa=True)
    with torch.no_grad():
        t.heads.mul_(2)
        t.slopes.neg_()
        t.lengths.sub_(3)
    mask_mod: Mod = lambda b, h, i, j: j < t.lengths[b]  # noqa: E731
    for _ in range(2):
        found, _ = ours(*xs, mod, mask_mod)
        assert_same(found, eager(*xs, mod, mask_mod))
    assert not torch.allclose(before, found[0])


@pytest.mark.skipif(not hasattr(flex, "AuxRequest"), reason="PyTorch 2.8 has no AuxRequest")
def test_arguments_of_pytorch() -> None:
    xs = inputs()
    mod = FITTING["all of them"](Tables())
    plain = flex_attention(*xs, mod, causal, 0.3, True)
    assert_same([plain], eager(*xs, mod, causal, 0.3)[:1])
    out, aux = flex_attention(
        *xs,
        mod,
        causal,
        0.3,
        True,
        kernel_options={"BLOCK_M": 64},
        return_aux=flex.AuxRequest(lse=True),
    )
    assert_same((out, aux.lse), eager(*xs, mod, causal, 0.3))
    out, aux = flex_attention(*xs, mod, causal, 0.3, True, return_aux=flex.AuxRequest())
    assert torch.equal(out, plain)
    assert aux.lse is None


@pytest.mark.skipif(not hasattr(flex, "AuxRequest"), reason="PyTorch 2.8 has no AuxRequest")
@pytest.mark.parametrize(
    "name", ["none", "all of them", "square of a bias", "empty rows", "keys only"]
)
def test_largest_scores(name: str) -> None:
    """PyTorch's largest scores are of all pairs that the masks leave, −∞ without one."""
    tables, xs = Tables(), inputs()
    mod = (UNFIT[name][1] if name in UNFIT else FITTING[name])(tables)
    request = flex.AuxRequest(lse=True, max_scores=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, aux = flex_attention(*xs, mod, causal, 0.3, True, return_aux=request)
    expected = eager(*xs, mod, causal, 0.3, largest=True)
    assert_same([aux.lse, aux.max_scores], expected[1:])
    assert not aux.max_scores.requires_grad


@pytest.mark.parametrize("sizes", [(2, 4, 0, 3), (2, 4, 3, 0), (0, 4, 3, 3), (2, 4, 0, 0)])
def test_nothing_to_attend_to(sizes: tuple[int, int, int, int]) -> None:
    b, h, queries, keys = sizes
    q, k, v = (torch.ones(b, h, n, d) for n, d in ((queries, 5), (keys, 5), (keys, 3)))
    for mod in (lambda s, b, h, i, j: s + (i - j), lambda s, b, h, i, j: s * s):
        for mask in (None, causal, natten):
            out, lse = flex_attention(q, k, v, mod, mask, return_lse=True)
            assert out.shape == (b, h, queries, 3)
            assert (out == 0).all()
            assert lse.shape == (b, h, queries)
            assert (lse == LOW).all()


def test_one_batch_of_keys_serves_all() -> None:
    q, k, v = inputs()
    t = Tables()
    for mod in (FITTING["batches"](t), UNFIT["temperature of keys"][1](t)):
        found, _ = ours(q, k[:1], v[:1], mod)
        assert_same(found, eager(q, k[:1], v[:1], mod))


def received(*xs: Tensor, **options: Any) -> dict[str, Any]:
    """Return the arguments of `attention` in a call."""
    seen: dict[str, Any] = {}

    def attend(*args: Any, **given: Any) -> Any:
        seen.update(given)
        return anyscore.attention(*args, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "attention", attend)
        flex_attention(*xs, enable_gqa=True, **options)
    return seen


def test_parts_that_take_no_memory_for_pairs() -> None:
    t, xs = Tables(), inputs()
    mod: Mod = lambda s, b, h, i, j: torch.where(  # noqa: E731
        i >= j, capped(t.heads[h] * s) + t.slopes[h] * (j - i) + 0.1 * (i - j), LOW
    )
    seen = received(*xs, score_mod=mod)
    assert isinstance(seen["bias_after"], module.OfDistance)
    assert isinstance(seen["mask"], Interval)
    assert (seen["softcap"], seen["bias"]) == (2.0, None)
    seen = received(*xs, score_mod=lambda s, b, h, i, j: s + t.keys[b, j] - (i - j).abs())
    assert seen["bias"].shape == (B, 1, T_Q, T_K)  # kernels take one bias
    assert seen["bias_after"] is None
    for name in ("Transformer-XL", "clipped distances", "squared distance", "T5", "causal, added"):
        assert isinstance(received(*xs, score_mod=FITTING[name](t))["bias"], module.OfDistance)


def test_operations_are_read_once() -> None:
    """Each result is read twice; reading a tree of them would take 2⁶⁰ steps."""
    xs = [x.detach() for x in inputs()]

    def doubled(x: Any) -> Any:
        for _ in range(60):
            x = (x + x) * 0.5
        return x

    found, warned = ours(*xs, lambda s, b, h, i, j: s + doubled(i - j))
    assert not warned
    assert_same(found, eager(*xs, lambda s, b, h, i, j: s + 1.0 * (i - j)))
    found, warned = ours(*xs, lambda s, b, h, i, j: torch.where(i > j, doubled(s), s))
    assert_same(found, eager(*xs))
    assert len(warned[0]) < 1000


SCORES: dict[str, Callable[[Callable[..., Tensor]], anyscore.Score]] = {
    "additive": lambda made: Additive(made(6, D), made(6, D), made(6)),
    "gatv2": lambda made: GATv2(made(6, D), made(6, D), made(6)),
    "laplace": lambda made: Laplace(made().abs().detach().requires_grad_()),
    "euclidean": lambda made: Euclidean(made().abs().detach().requires_grad_()),
    "student_t": lambda made: StudentT(2.0),
}


@pytest.mark.parametrize("mod", ["none", "ALiBi", "keys", "tanh softcap", "all of them",
                                 "softcap, then ALiBi", "keys and distances", "temperature",
                                 "square"])  # fmt: skip
@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str, mod: str) -> None:
    """A matrix of scores, changed by PyTorch, is the oracle; biases come after a root."""
    tables, xs = Tables(), inputs()
    score = SCORES[name](lambda *n: torch.randn(n, dtype=torch.float64).requires_grad_())
    leaves = [*xs, *tables.leaves(), *score.tensors().values()]
    change = FITTING[mod](tables)
    positions = torch.meshgrid(*map(torch.arange, (B, H, T_Q, T_K)), indexing="ij")
    s = change(anyscore.scores(*xs[:2], score=score), *positions)
    value = xs[2].repeat_interleave(H // KEY_HEADS, 1)
    empty = s.isneginf().all(-1, keepdim=True)
    expected = torch.where(empty, 0.0, s.softmax(-1)) @ value, s.logsumexp(-1)
    found, _ = ours(*xs, change, score=score)
    assert_same(found, expected)
    assert_same(gradients(found, leaves), gradients(expected, leaves), "gradients")


def test_a_function_is_a_score() -> None:
    xs = inputs()
    product: Mod = lambda q, k: 0.3 * q @ k.mT  # noqa: E731
    for name in ("softcap, then ALiBi", "temperature"):
        mod = FITTING[name](Tables())
        found, _ = ours(*xs, mod, causal, score=product)
        assert_same(found, eager(*xs, mod, causal, 0.3))
