"""Mods of flex_attention that write: in place as in PyTorch, or refused in a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention as pytorch

from anyscore.torch import flex_attention

pytestmark = [
    pytest.mark.sample,
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # PyTorch's
]

LOW = -math.inf
TABLE = torch.linspace(-1, 1, 6, dtype=torch.float64)
Mod = Callable[..., Any]


def both(in_place: str) -> Mod:
    """Return a function of the body of a mod, whose lines divide at ";"."""
    lines = "".join(f"    {line.strip()}\n" for line in in_place.split(";"))
    names = {"torch": torch, "F": F, "LOW": LOW, "TABLE": TABLE}
    exec(f"def mod(s, b, h, i, j):\n{lines}", names)
    found: Mod = names["mod"]  # type: ignore[assignment]
    return found


SCORES = {
    "causal": "s.masked_fill_(i < j, LOW); return s",
    "a result that is read": "return s.add_(TABLE[j])",
    "a sum": "s += TABLE[j]; return s",
    "a sum by another name": "t = s; t += TABLE[j]; return s",
    "a temporary": "t = s.clone(); t.add_(TABLE[j]); return t",
    "the score before": "t = s * 2; s.add_(TABLE[j]); return t + 3 * s",
    "the score before, by a copy": "t = s.clone(); s.mul_(2); s.sub_(1); return s - t",
    "another scalar": "k = 0.1 * j; k.mul_(3); return s + k",
    "a copy": "s.copy_(2 * s - 1); return s",
    "a constant copy": "k = 0.5 * j; k.fill_(2); return s + k",
    "zero": "k = 0.5 * j; k.zero_(); return s + k",
    "clamped": "s.clamp_(min=-0.5); return s",
    "a function": "torch.relu_(s); return s",
    "inplace=True": "F.relu(s, inplace=True); return s",
    "an integer stays one": "k = j + 0; k.mul_(2); k //= 3; return s + k",
    "by keywords": "s.add_(other=TABLE[j]); return torch.add(input=s, other=i)",
    "two keywords": "return torch.where(condition=i.ge(other=j), input=s, other=LOW)",
    "a bias by keywords": "return s + torch.where(torch.ge(i, other=j), 0.0, -2.0)",
    "a shape": "return s + h.new_zeros(h.shape) + s.ndim + s.dim() + len(s.size())",
}
MASKS = {
    "and": "keep = i >= j; keep.logical_and_(j > 1); return keep",
    "and, by an operator": "keep = i >= j; keep &= j > 1; return keep",
    "or": "keep = i > j; keep.logical_or_(j == 0); return keep",
    "a fill": "keep = i >= j; keep.masked_fill_(j == 1, False); return keep",
}


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = (2, 2, 6, 4), (2, 2, 6, 4), (2, 2, 6, 3)
    return [torch.randn(x, generator=generator, dtype=torch.float64) for x in shapes]


@pytest.mark.filterwarnings("ignore:score_mod is computed in memory")
@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str) -> None:
    xs, mod = inputs(), both(SCORES[name])
    found = flex_attention(*xs, mod)
    torch.testing.assert_close(found, pytorch(*xs, mod))
    torch.testing.assert_close(found, flex_attention(*xs, mod), rtol=0, atol=0)


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    xs = inputs()
    mod = both(MASKS[name].replace("s, b", "b"))
    mask_mod = lambda *at: mod(None, *at)  # noqa: E731
    expected = pytorch(*xs, lambda s, *at: torch.where(mod(None, *at), s, LOW))
    kept = torch.nan_to_num(expected)  # PyTorch has NaN without keys
    torch.testing.assert_close(flex_attention(*xs, block_mask=mask_mod), kept)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("torch.mul(s, 2, out=s); return s", "mul with out=: use its result"),
        ("TABLE.add_(s); return s", "changes a captured tensor by add_"),
        ("TABLE[j] = s; return s", "changes a captured tensor by __setitem__"),
        ("k = j + 0; k.mul_(0.5); return s + k", "float32 in place of torch.int32"),
        ("s.requires_grad_(); return s", "requires_grad_ in place, which is not recorded"),
    ],
)
def test_what_is_refused(body: str, words: str) -> None:
    before = TABLE.clone()
    with pytest.raises(TypeError, match=words):
        flex_attention(*inputs(), both(body))
    assert torch.equal(TABLE, before)


@pytest.mark.parametrize("by", ["mask", "scores", "table"])
def test_another_default_device_is_not_asked(by: str) -> None:
    """A default device is that of new tensors, not of these."""
    xs, table = inputs(), TABLE
    arguments: dict[str, Any] = {
        "mask": {"block_mask": lambda b, h, i, j: (i >= j) & (j > torch.zeros_like(j) - 1)},
        "scores": {"score_mod": lambda s, b, h, i, j: torch.where(i >= j, 2 * s, LOW)},
        "table": {"score_mod": lambda s, b, h, i, j: s.tanh() + table[j] * h.new_ones(())},
    }[by]
    expected = flex_attention(*xs, **arguments)
    with torch.device("meta"):
        assert torch.equal(flex_attention(*xs, **arguments), expected)
