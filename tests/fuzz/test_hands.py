"""A mask of this package hides the same keys after any operation of another library.

A random chain of PyTorch's operations is applied to the mask of a model of transformers and to its
plain booleans. In the end both are read and used for attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from anyscore import attention
from fuzz.fuzzing import Effort

LEAST = torch.finfo(torch.float32).min
Step = Callable[[Any], Any]
STEPS: dict[str, Step] = {
    "cut queries": lambda m: m[:, :, 1:],
    "cut keys": lambda m: m[..., :-1],
    "the last query": lambda m: m[:, :, -1:],
    "an entry of the batch": lambda m: m[:1],
    "every other key": lambda m: m[..., ::2],
    "narrow": lambda m: m.narrow(-1, 0, m.shape[-1] - 1),
    "heads": lambda m: m.expand(-1, 3, -1, -1) if m.shape[1] == 1 else m,
    "repeat": lambda m: m.repeat(1, 2, 1, 1),
    "copy": lambda m: m.clone(),
    "contiguous": lambda m: m.contiguous(),
    "an axis more and less": lambda m: m.unsqueeze(2).squeeze(2),
    "reshape": lambda m: m.flatten(0, 1).reshape(m.shape),
    "turned twice": lambda m: m.transpose(-1, -2).mT,
    "flip": lambda m: m.flip(-1),
    "roll": lambda m: m.roll(1, -1),
    "not not": lambda m: ~~m,
    "and": lambda m: m & m.new_ones(m.shape[-1]).bool(),
    "or": lambda m: m | m[..., :1],
    "with itself": lambda m: torch.cat([m, m], 1),
    "one batch after another": lambda m: torch.stack(list(m.unbind(0))),
    "written to": lambda m: _written(m),
    "filled": lambda m: m.masked_fill(torch.ones(m.shape[-1]).cumsum(0) == 1, False),
    "padded": lambda m: torch.nn.functional.pad(m, (0, 1), value=False),
    "to floats and back": lambda m: m.float() > 0.5,
    "to integers and back": lambda m: m.to(torch.int64) == 1,
    "where": lambda m: torch.where(m, 1.0, 0.0).bool(),
}
ENDS: dict[str, Step] = {
    "numbers that are added": lambda m: torch.where(m, 0.0, LEAST),
    "1 − mask, times the least": lambda m: (1.0 - m.float()) * LEAST,
    "scores that it fills": lambda m: _scores(m).masked_fill(~m, LEAST),
    "a count": lambda m: m.sum(-1),
    "whether any": lambda m: m.any(-1),
    "a product": lambda m: _scores(m) * m,
    "a list": lambda m: torch.tensor(m.tolist()),
}
SUMS: dict[str, Step] = {  # a boolean mask hides keys here, and plain booleans would add 1
    "mask + scores": lambda m: m + _scores(m),
    "scores + mask": lambda m: _scores(m) + m,
    "scores.add_": lambda m: _scores(m).add_(m),
}


def _scores(m: Tensor) -> Tensor:
    return torch.linspace(-1, 1, m.numel()).reshape(m.shape)


def _written(m: Tensor) -> Tensor:
    m = m.clone()
    m[..., :1] = False
    return m


def _attended(mask: Any, shape: torch.Size) -> Tensor:
    query, key = (torch.ones(*shape[:2], n, 2) for n in shape[-2:])
    weights: Tensor = attention(query, key, key, mask=mask, return_weights=True).weights
    return weights


@st.composite
def masks(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a model's arguments for its mask."""
    from transformers import masking_utils as theirs

    batch, queries, keys = draw(st.integers(1, 3)), draw(st.integers(2, 5)), draw(st.integers(2, 6))
    functions = (
        theirs.causal_mask_function, theirs.bidirectional_mask_function,
        theirs.sliding_window_causal_mask_function(draw(st.integers(1, 4))),
    )  # fmt: skip
    padding = None
    if draw(st.booleans()):
        rows = st.lists(st.booleans(), min_size=keys, max_size=keys)
        padding = torch.tensor(draw(st.lists(rows, min_size=batch, max_size=batch)))
    return {
        "batch_size": batch, "q_length": queries, "kv_length": keys,
        "q_offset": draw(st.integers(0, 3)), "mask_function": draw(st.sampled_from(functions)),
        "attention_mask": padding, "allow_is_causal_skip": False,
        "allow_is_bidirectional_skip": False,
    }  # fmt: skip


def test_masks_in_other_hands(effort: Effort) -> None:
    from transformers.masking_utils import sdpa_mask

    from anyscore.hf.masks import IntervalMask, interval_mask

    def check(drawn: tuple[dict[str, Any], list[str], str]) -> None:
        given, steps, end = drawn
        ours, plain = interval_mask(**given), sdpa_mask(**given)
        assert isinstance(ours, IntervalMask)
        for name in steps:
            if name in ("cut keys", "narrow", "cut queries") and min(plain.shape[-2:]) < 2:
                continue
            ours, plain = STEPS[name](ours), STEPS[name](plain)
        if end in ENDS:
            assert torch.equal(ENDS[end](ours), ENDS[end](plain))
        elif end in SUMS and isinstance(ours, IntervalMask):
            hidden = torch.zeros(plain.shape).masked_fill(~plain, LEAST)
            assert torch.equal(SUMS[end](ours), _scores(plain) + hidden)
        for mask in (ours, getattr(ours, "mask", ours)):
            found = _attended(mask, plain.shape)
            torch.testing.assert_close(found, _attended(plain, plain.shape))

    chains = st.lists(st.sampled_from(list(STEPS)), max_size=4)
    ends = st.sampled_from([*ENDS, *SUMS, "none"])
    effort.spend(check, st.tuples(masks(), chains, ends), examples=200, share=0.05)
