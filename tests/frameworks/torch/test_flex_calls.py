"""`flex_attention`: objects of masks, refusals, memory, transforms and compilation."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.attention.flex_attention import flex_attention as pytorch_flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

from anyscore import Laplace
from anyscore.masks.objects import BooleanMask, Interval
from anyscore.torch import flex_attention
from anyscore.torch.flex import masks
from anyscore.torch.flex.trace import POSITIONS
from helpers import machine
from helpers.flex import assert_same, eager, gradients, ours
from helpers.transformed import WARNINGS

B, H, T_Q, T_K, D = 2, 3, 7, 11, 5
Mod = Callable[..., Any]


class Request(NamedTuple):
    """`AuxRequest` of PyTorch, which PyTorch 2.8 has not."""

    lse: bool = False
    max_scores: bool = False


IN_MEMORY = pytest.mark.filterwarnings("ignore:score_mod is computed in memory:UserWarning")
pytestmark = [pytest.mark.sample, *WARNINGS]


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    shapes = shapes or ((B, H, T_Q, D), (B, H, T_K, D), (B, H, T_K, D))
    return [torch.randn(x, dtype=torch.float64).requires_grad_() for x in shapes]


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def gaps(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i + j + b + h) % 2 == 0


def alibi(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s - 0.1 * (h + 1) * (i - j).abs()


def positions(*sizes: int) -> dict[str, Tensor]:
    return {name: torch.arange(n) for name, n in zip(POSITIONS, sizes, strict=True)}


@pytest.mark.parametrize("sizes", [(B, H), (None, H), (B, None), (None, None)])
@pytest.mark.parametrize("mask_mod", [causal, gaps])
def test_block_masks(mask_mod: Mod, sizes: tuple[int | None, int | None]) -> None:
    xs = tensors()
    block_mask = create_block_mask(mask_mod, *sizes, T_Q, T_K, device="cpu")
    for _ in range(2):
        found, _ = ours(*xs, alibi, block_mask=block_mask)
        expected = eager(*xs, alibi, mask_mod)
        assert_same(found, expected)
        assert_same(gradients(found, xs), gradients(expected, xs), "gradients")


def test_adjusted_block_masks() -> None:
    q, k, v = (x[:, :, :5] for x in tensors())
    block_mask = create_block_mask(causal, None, None, T_Q, T_K, device="cpu")._adjust(5, 5)
    assert_same(ours(q, k, v, block_mask=block_mask)[0], eager(q, k, v, None, causal))


def test_slices_of_block_masks() -> None:
    """A slice takes another mask_mod, and no mask of an earlier one is kept."""
    q, k, v = tensors((1, 1, 256, 4), (1, 1, 130, 4), (1, 1, 130, 4))
    whole = create_block_mask(causal, None, None, 256, 130, device="cpu")
    part = whole[:, :, torch.tensor([1])]
    with pytest.raises(ValueError, match=r"for \(256, 130\) .* has \(128, 130\)"):
        flex_attention(q[:, :, 128:], k, v, block_mask=part)
    part.seq_lengths = (128, 130)
    with pytest.raises(RuntimeError, match="mask_mod from a sliced BlockMask"):
        flex_attention(q[:, :, 128:], k, v, block_mask=part)
    for without in (-1, 129, 128):

        def later(b: Any, h: Any, i: Any, j: Any, without: int = without) -> Any:
            return (i + 128 >= j) & (j != without)

        part.mask_mod = later
        mod = lambda b, h, i, j, without=without: (i >= j) & (j != without)  # noqa: E731
        expected = eager(q, k, v, None, mod)
        found, _ = ours(q[:, :, 128:], k, v, block_mask=part)
        assert_same(found, [x[:, :, 128:] for x in expected])


def of_blocks(
    blocks: list[list[int]], full: list[list[int]] | None = None, mask_mod: Mod | None = None
) -> BlockMask:
    """Return a mask of blocks of 4 queries and 6 keys; `full` ones do not read mask_mod."""
    made = []
    for of_kind in (blocks, full):
        if of_kind is None:
            made += [None, None]
            continue
        dense = torch.tensor(of_kind)
        count = dense.sum(-1, dtype=torch.int32)
        indices = dense.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
        made += [count[None, None], indices[None, None]]
    return BlockMask.from_kv_blocks(
        *made, BLOCK_SIZE=(4, 6), mask_mod=mask_mod, seq_lengths=(T_Q, T_K)
    )


def test_blocks_with_a_function() -> None:
    """A pair is attended in a full block, and in another one where mask_mod keeps it."""
    xs = tensors()
    some, full = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1, 0], [0, 0]])
    block_mask = of_blocks(some.tolist(), full.tolist(), gaps)

    def kept(b: Any, h: Any, i: Any, j: Any) -> Any:
        block = i // 4, j // 6
        return (some[block].bool() & gaps(b, h, i, j)) | full[block].bool()

    for _ in range(2):
        expected = eager(*xs, alibi, kept)
        assert_same(ours(*xs, alibi, block_mask=block_mask)[0], expected)


@pytest.mark.weekly
def test_blocks_with_a_function_as_compiled_by_pytorch() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, 1, 512, 8, generator=generator)
    count = torch.tensor([[[1, 1, 1, 1]]], dtype=torch.int32)
    indices = torch.tensor([[[[0] * 4, [0] * 4, [1, 0, 0, 0], [2, 0, 0, 0]]]], dtype=torch.int32)
    block_mask = BlockMask.from_kv_blocks(count, indices, BLOCK_SIZE=128, mask_mod=causal)
    machine.compiler()
    with torch.no_grad():
        expected = torch.compile(pytorch_flex_attention)(x, x, x, block_mask=block_mask)
    torch.testing.assert_close(flex_attention(x, x, x, block_mask=block_mask), expected)


def test_few_masks_of_a_block_mask_are_kept() -> None:
    """A decoder may set a mask_mod at each step: a few masks stay, and no earlier mask_mod."""
    xs = tensors()
    block_mask = create_block_mask(causal, None, None, T_Q, T_K, device="cpu")
    mods = []
    for step in range(20):
        block_mask.mask_mod = lambda b, h, i, j, step=step: (i + step) % 7 != j % 7
        mods.append(weakref.ref(block_mask.mask_mod))
        flex_attention(*xs, block_mask=block_mask)
    assert len(masks._KEPT[block_mask]) == masks.KEPT
    gc.collect()
    assert [mod() is not None for mod in mods] == [False] * 19 + [True]


@pytest.mark.parametrize(
    ("blocks", "kind"),
    [
        ([[1, 0], [1, 1]], Interval),
        ([[0, 1], [0, 0]], Interval),
        ([[1, 1], [1, 1]], type(None)),
    ],
)
def test_blocks_without_a_function(blocks: list[list[int]], kind: type) -> None:
    xs, block_mask = tensors(), of_blocks(blocks)
    table = torch.tensor(blocks).bool()
    expected = eager(*xs, None, lambda b, h, i, j: table[i // 4, j // 6])
    assert_same(ours(*xs, block_mask=block_mask)[0], expected)
    found = masks.of_block_mask(block_mask, positions(B, H, T_Q, T_K), xs[0])
    assert isinstance(found, kind)


def test_a_mask_is_kept_with_its_block_mask_and_released_with_it() -> None:
    xs, count = tensors(), 0

    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        nonlocal count
        count += 1
        return i >= j

    block_mask = create_block_mask(mask_mod, B, H, T_Q, T_K, device="cpu")
    count = 0
    for _ in range(3):
        flex_attention(*xs, block_mask=block_mask)
    assert count == 1
    (_, kept), *others = masks._KEPT[block_mask].values()
    assert not others
    mask, owner = weakref.ref(kept), weakref.ref(block_mask)
    del kept, block_mask
    gc.collect()
    assert mask() is None
    assert owner() is None
    for _ in range(3):
        flex_attention(*xs, block_mask=mask_mod)
    assert count == 4


@pytest.mark.parametrize("mask_mod", [causal, gaps])
def test_a_mask_of_inference_serves_training(mask_mod: Mod) -> None:
    xs = tensors()
    block_mask = create_block_mask(mask_mod, B, H, T_Q, T_K, device="cpu")
    with torch.inference_mode():
        flex_attention(*xs, block_mask=block_mask)
    found, _ = ours(*xs, block_mask=block_mask)
    assert_same(gradients(found, xs), gradients(eager(*xs, None, mask_mod), xs))


RULES: dict[str, tuple[Mod, type]] = {
    "causal": (causal, Interval),
    "keys": (lambda b, h, i, j: j < 4 + b, Interval),
    "some keys": (lambda b, h, i, j: j % 3 > 0, BooleanMask),
    "queries": (lambda b, h, i, j: i % 3 > h, Interval),
    "a late gap": (lambda b, h, i, j: (i < 6) | (j != 4), BooleanMask),
    "an early gap": (lambda b, h, i, j: (i > 0) | (j != 4), BooleanMask),
    "a gap of one head": (lambda b, h, i, j: (h < 2) | (j != 4), BooleanMask),
    "an end": (lambda b, h, i, j: (i != 3) | (j != T_K - 1), Interval),
    "empty": (lambda b, h, i, j: j < 0, Interval),
    "all": (lambda b, h, i, j: True, Interval),
}


@pytest.mark.parametrize("pairs", [1, 70, 2**22])
@pytest.mark.parametrize("name", RULES)
def test_masks_are_intervals_where_no_row_has_a_gap(
    name: str, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conditions are computed for some queries at a time, at least two."""
    monkeypatch.setattr(masks, "PAIRS", pairs)
    rule, kind = RULES[name]
    at = positions(B, H, T_Q, T_K)
    found = masks.of_block_mask(rule, at, torch.empty(0))
    assert isinstance(found, kind)
    keep = torch.as_tensor(rule(*torch.meshgrid(*at.values(), indexing="ij")))
    if isinstance(found, Interval):
        j = torch.arange(T_K)
        made = (found.start[..., None] <= j) & (j < found.stop[..., None])
    else:
        assert isinstance(found, BooleanMask)
        made = found.keep
    assert torch.equal(made.expand(B, H, T_Q, T_K), keep.expand(B, H, T_Q, T_K))


class Largest(TorchDispatchMode):
    """Notes the most entries of a tensor that an operation makes."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, Tensor):
                self.entries = max(self.entries, x.untyped_storage().nbytes() // x.itemsize)
        return out


def most_entries(mod: Mod, mask: Any = None) -> int:
    n = 1024
    xs = [torch.randn(1, 2, n, 4).requires_grad_() for _ in range(3)]
    with Largest() as seen:
        flex_attention(*xs, mod, mask).sum().backward()
    return seen.entries // n


@pytest.mark.slow
@IN_MEMORY
def test_no_matrix_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """ALiBi, a softcap, a learned temperature and intervals: memory for tokens alone."""
    monkeypatch.setattr(masks, "PAIRS", 2**14)
    slopes = torch.rand(2).requires_grad_()

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        capped = 9 * torch.tanh(slopes[h] * s / 9)
        return torch.where(i >= j, capped - slopes[h] * (i - j), -float("inf"))

    documents = torch.arange(1024) // 100
    tokens = most_entries(mod, lambda b, h, i, j: documents[i] == documents[j])
    assert tokens < 100
    assert most_entries(lambda *at: mod(*at) ** 2) >= 1024  # the measure sees a matrix


ONES = torch.ones(H)
REFUSED: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "if": (
        TypeError, r"called once.* number of \(q_idx > kv_idx\), as `if`.*write torch.where",
        {"score_mod": lambda s, b, h, i, j: s if i > j else -s},
    ),
    "and": (
        TypeError, r"number of \(q_idx > 3\).*write torch.where",
        {"block_mask": lambda b, h, i, j: i > 3 and j > 2},
    ),
    "int": (TypeError, "number of h", {"score_mod": lambda s, b, h, i, j: s * int(h)}),
    "range": (TypeError, "number of h", {"score_mod": lambda s, b, h, i, j: s + sum(range(h))}),
    "dtype": (
        TypeError, r"dtype of \(score \* 2\); arguments",
        {"score_mod": lambda s, b, h, i, j: s + torch.finfo((s * 2).dtype).min},
    ),
    "attribute": (AttributeError, "no attribute 'grad'", {"score_mod": lambda s, *at: s.grad}),
    "a bias of all heads": (
        ValueError, r"tensor\(3,\) of shape \(3,\), expected a scalar .*: index it by b, h",
        {"score_mod": lambda s, b, h, i, j: s + ONES},
    ),
    "a factor of all heads": (
        ValueError, r"of shape \(3,\), expected a scalar",
        {"score_mod": lambda s, b, h, i, j: s * ONES},
    ),
    "a vector": (
        ValueError, r"score \+ tensor.* of shape \(3,\), expected a scalar",
        {"score_mod": lambda s, b, h, i, j: torch.lgamma(s + ONES)},
    ),
    "a vector of booleans": (
        ValueError, r"q_idx < tensor\(3,\)\) of shape \(3,\)",
        {"block_mask": lambda b, h, i, j: i < ONES},
    ),
    "nothing": (TypeError, "a NoneType, expected a scalar", {"score_mod": lambda *at: None}),
    "two": (TypeError, "returns a tuple, expected a scalar", {"score_mod": lambda s, *at: (s, s)}),
    "no condition": (TypeError, "returns a NoneType", {"block_mask": lambda *at: None}),
    "complex": (
        TypeError, "of torch.complex64: expected real",
        {"score_mod": lambda s, b, h, i, j: s + ONES.to(torch.complex64)[h]},
    ),
    "another device": (
        ValueError, r"captures tensor\(3,\) on meta, expected cpu.*move .*\.to\(query\.device\)",
        {"score_mod": lambda s, b, h, i, j: s + ONES.to("meta")[h] * (i - j)},
    ),
    "a number of another device": (
        ValueError, r"captures tensor\(\) on meta, expected cpu",
        {"score_mod": lambda s, *at: s * torch.tensor(1.0, device="meta")},
    ),
    "a mask of another device": (
        ValueError, "on meta, expected cpu",
        {"block_mask": lambda b, h, i, j: ONES.to("meta")[h] > 0},
    ),
    "no function": (TypeError, "score_mod is a int, expected a function", {"score_mod": 3}),
    "no mask": (TypeError, "block_mask is a Tensor, expected a Block", {"block_mask": ONES}),
    "rank": (
        ValueError, r"query has shape \(7, 5\), expected \(batch, heads, tokens, width\)",
        {"query": torch.ones(7, 5)},
    ),
    "no tensor": (TypeError, "key is a list, expected a PyTorch tensor", {"key": [1.0]}),
    "heads": (
        ValueError, "query has 6 heads and key 3: pass enable_gqa=True",
        {"query": torch.ones(B, 6, T_Q, D).double()},
    ),
    "no divisor": (
        ValueError, "query has 4 heads and key 3, expected a divisor of 4: repeat",
        {"query": torch.ones(B, 4, T_Q, D).double(), "enable_gqa": True},
    ),
    "one head of queries": (
        ValueError, "query has 1 heads and key 3, expected a divisor",
        {"query": torch.ones(B, 1, T_Q, D).double(), "enable_gqa": True},
    ),
    "heads of values": (
        ValueError, r"\(2, 3\), \(2, 3\) and \(2, 1\), expected a batch of 2 or 1 and equal heads",
        {"value": torch.ones(B, 1, T_K, D).double()},
    ),
    "batch": (
        ValueError, r"\(1, 3\), \(2, 3\) and \(2, 3\), expected a batch of 1",
        {"query": torch.ones(1, H, T_Q, D).double()},
    ),
    "scale": (
        ValueError, "scale is for the product.*: give the score its own",
        {"scale": 1.0, "score": Laplace(1.0)},
    ),
    "two kinds of results": (
        ValueError, r"both given: AuxRequest\(lse=True\) is enough",
        {"return_lse": True, "return_aux": Request(True)},
    ),
    "queries of a block mask": (
        ValueError, r"for \(6, 11\) queries and keys, and the call has \(7, 11\): make it by",
        {"block_mask": create_block_mask(causal, B, H, 6, T_K, device="cpu")},
    ),
    "heads of a block mask": (
        ValueError, r"\(B, H\) = \(2, 2\), and the call has \(2, 3\): make it by",
        {"block_mask": create_block_mask(causal, B, 2, T_Q, T_K, device="cpu")},
    ),
}  # fmt: skip


@IN_MEMORY
@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    error, words, change = REFUSED[name]
    given = dict(zip(("query", "key", "value"), tensors(), strict=True))
    with pytest.raises(error, match=words):
        flex_attention(**{**given, **change})


@pytest.mark.parametrize(
    "function",
    [lambda s, one: torch.tanh(s / one) * one, lambda s, one: torch.sigmoid(s * one) * s],
    ids=["softcap", "formula"],
)
def test_gradients_of_captured_numbers_are_not_lost(function: Mod) -> None:
    """A tensor () is a number only if no derivative reaches it."""
    xs = tensors()
    one = torch.tensor(0.7, dtype=torch.float64)

    def loss(one: Tensor) -> Any:
        mod: Mod = lambda s, *at: function(s, one)  # noqa: E731
        return flex_attention(*xs, mod).square().sum()

    with pytest.warns(UserWarning, match="in memory"):
        expected = torch.autograd.grad(loss(leaf := one.clone().requires_grad_()), leaf)[0]
    h = 1e-6
    numeric = (loss(one + h) - loss(one - h)) / (2 * h)
    torch.testing.assert_close(expected, numeric.detach(), rtol=1e-6, atol=0)
    with pytest.warns(UserWarning, match="in memory"):
        torch.testing.assert_close(torch.func.grad(loss)(one), expected)
    with pytest.warns(UserWarning, match="in memory"):
        tangent = torch.func.jvp(loss, (one,), (torch.ones_like(one),))[1]
    torch.testing.assert_close(tangent.detach(), expected)
    with pytest.warns(UserWarning, match="in memory"):
        two = torch.func.vmap(loss)(torch.stack([one, 2 * one])).detach()
    torch.testing.assert_close(two[0], loss(one).detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_a_captured_table_add_up_in_float32(dtype: torch.dtype) -> None:
    """Far keys share the entries at the edges, which a sum in 16 bits would round away."""
    tokens = 1024
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(1, 1, tokens, 8, generator=generator).to(dtype)

    def gradient(dtype: torch.dtype) -> Tensor:
        table = torch.zeros(17, dtype=dtype, requires_grad=True)
        mod: Mod = lambda s, b, h, i, j: s + table[(i - j).clamp(-8, 8) + 8]  # noqa: E731
        output = flex_attention(*(x.to(dtype),) * 3, mod)
        sign = torch.where(torch.arange(tokens) < tokens // 2, -1.0, 1.0)[:, None]
        return torch.autograd.grad((output.double() * sign).sum(), table)[0].double()

    exact = gradient(torch.float64)
    assert (gradient(dtype) - exact).abs().max() <= 2**-6 * exact.abs().max()


def test_transforms() -> None:
    q, k, v = (x.detach() for x in tensors())
    slopes = torch.rand(H, dtype=torch.float64)

    def f(q: Tensor, slopes: Tensor, factor: Tensor) -> Any:
        mod: Mod = lambda s, b, h, i, j: factor * s + slopes[h] * (j - i)  # noqa: E731
        return flex_attention(q, k, v, mod, causal)

    given = q, slopes, torch.tensor(0.4, dtype=torch.float64)
    leaves = [x.clone().requires_grad_() for x in given]
    expected = torch.autograd.grad(f(*leaves).square().sum(), leaves)
    found = torch.func.grad(lambda *xs: f(*xs).square().sum(), argnums=(0, 1, 2))(*given)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
    many = [torch.stack([x, 2 * x]) for x in given]
    each = torch.stack([f(*given), f(*(2 * x for x in given))])
    torch.testing.assert_close(torch.vmap(f)(*many), each)
    tangents = [torch.randn_like(x) for x in given]
    tangent = torch.func.jvp(f, given, tuple(tangents))[1]
    h = 1e-6
    near = [f(*(x + e * t for x, t in zip(given, tangents, strict=True))) for e in (h, -h)]
    torch.testing.assert_close(tangent, (near[0] - near[1]) / (2 * h), rtol=1e-6, atol=1e-8)


def test_lengths_of_a_transform() -> None:
    xs = [x.detach() for x in tensors()]

    def f(lengths: Tensor) -> Any:
        return flex_attention(*xs, alibi, lambda b, h, i, j: (j < lengths[b]) & (i >= j))

    lengths = torch.tensor([[3, 11], [0, 7]])
    torch.testing.assert_close(torch.vmap(f)(lengths), torch.stack([f(x) for x in lengths]))


@pytest.mark.parametrize("mod", [alibi, lambda s, *at: s * s])
def test_autocast(mod: Mod) -> None:
    q, k, v = (x.detach().float() for x in tensors())
    with torch.autocast("cpu", torch.bfloat16):
        (out, lse), _ = ours(q, k, v, mod, causal)
    rounded = [x.bfloat16() for x in (q, k, v)]
    (expected, of_rounded), _ = ours(*rounded, mod, causal)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(out, expected, rtol=2**-6, atol=2**-7)
    torch.testing.assert_close(lse, of_rounded, rtol=2**-6, atol=2**-7)


def test_without_gradients() -> None:
    xs = tensors()
    with torch.no_grad():
        found = flex_attention(*xs, alibi, causal)
    assert not found.requires_grad
    with torch.inference_mode():
        inferred = flex_attention(*xs, alibi, causal)
    for x in (found, inferred):
        torch.testing.assert_close(x.clone(), flex_attention(*xs, alibi, causal).detach())


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor that is not a leaf:UserWarning")
@IN_MEMORY
@pytest.mark.parametrize("mask", [None, causal, create_block_mask(gaps, B, H, T_Q, T_K, "cpu")])
@pytest.mark.parametrize("form", ["fits", "in memory", "compiled alone"])
def test_compiled_functions(form: str, mask: Any) -> None:
    """A compiler leaves the call as it is, and compiles the function around it."""

    def f(attend: Mod, cap: float, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Any:
        def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            changed = s + slopes[h] * (j - i)
            return changed * s if form == "in memory" else cap * torch.tanh(changed / cap)

        return attend(q.sin(), k, v, mod, mask).cos()

    compiled, attend = torch.compile(f, backend="aot_eager"), flex_attention
    if form == "compiled alone":
        compiled, attend = f, torch.compile(flex_attention, backend="aot_eager")
    xs = [*tensors(), torch.rand(H, dtype=torch.float64).requires_grad_()]
    for factor in (1.0, 2.0):
        given = [(factor * x).detach().requires_grad_() for x in xs]
        pairs = compiled(attend, 3 * factor, *given), f(flex_attention, 3 * factor, *given)
        found, expected = (torch.autograd.grad(x.square().sum(), given) for x in pairs)
        torch.testing.assert_close(*pairs)
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y)


def test_a_table_that_is_short_of_masked_pairs_is_named() -> None:
    """Masked pairs are read too, as in PyTorch; clamped indices give what PyTorch gives."""
    x, table = torch.randn(1, 2, 30, 4, dtype=torch.float64), torch.randn(9, dtype=torch.float64)

    def near(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i - j).abs() <= 4

    with pytest.raises(IndexError, match=r"a captured tensor of shape \(9,\): .*clamp the index"):
        flex_attention(x, x, x, lambda s, b, h, i, j: s + table[i - j + 4], near)

    def clamped(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + table[(i - j + 4).clamp(0, 8)]

    found, _ = ours(x, x, x, clamped, block_mask=near)
    assert_same(found, eager(x, x, x, clamped, near))
