"""Masks of transformers' models equal those of transformers, and are intervals where possible."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import masking_utils as theirs

from anyscore import attention
from anyscore.hf.masks import IntervalMask, interval_mask


def attended(mask: Any, shape: tuple[int, ...]) -> Tensor:
    """Return True for pairs with weight under a mask (batch, 1, T_q, T_k)."""
    batch, _, queries, keys = shape
    q, k = torch.zeros(batch, 1, queries, 2), torch.zeros(batch, 1, keys, 2)
    return attention(q, k, k, mask=mask, return_weights=True).weights > 0


BANDS = {
    "causal": lambda w: theirs.causal_mask_function,
    "all": lambda w: theirs.bidirectional_mask_function,
    "sliding": theirs.sliding_window_causal_mask_function,
    "sliding to both sides": theirs.sliding_window_bidirectional_mask_function,
}


@settings(max_examples=300)
@given(st.data())
def test_as_theirs(data: st.DataObject) -> None:
    """Masks agree for bands at any offset of queries and of keys, with any padding."""
    draw = data.draw
    batch, queries, keys = (draw(st.integers(1, n)) for n in (3, 6, 9))
    q_offset, kv_offset = draw(st.integers(0, 8)), draw(st.integers(0, 4))
    function = BANDS[draw(st.sampled_from(list(BANDS)))](draw(st.integers(1, 7)))
    padding = None
    if draw(st.booleans()):
        total = kv_offset + keys - draw(st.integers(0, 2))  # keys without a bit are padding
        bits = st.lists(st.booleans(), min_size=max(total, 1), max_size=max(total, 1))
        padding = torch.tensor([draw(bits) for _ in range(batch)])
    call: Any = (batch, queries, keys, q_offset, kv_offset, function, padding)
    skips = {"allow_is_causal_skip": draw(st.booleans())}
    found = interval_mask(*call, **skips)
    expected = theirs.sdpa_mask(*call, allow_is_causal_skip=False)
    assert expected is not None
    if found is None:
        assert skips["allow_is_causal_skip"]
        assert expected.all()
        return
    assert isinstance(found, IntervalMask)
    assert found.shape == expected.shape
    assert found.dtype == torch.bool
    assert not isinstance(found.mask, Tensor)
    assert torch.equal(attended(found.mask, found.shape), expected)
    assert torch.equal(found & True, expected)  # operations read the same booleans
    assert torch.equal(attended(found.mask, found.shape), expected)


@settings(max_examples=100)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 6), st.booleans())
def test_packed_sequences(lengths: list[int], width: int, sliding: bool) -> None:
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    numbers = theirs.find_packed_sequence_indices(positions)
    if numbers is None:
        return
    function = BANDS["sliding" if sliding else "causal"](width)
    packed = theirs.packed_sequence_compatibility_function(function, positions, numbers)
    call: Any = (1, sum(lengths), sum(lengths), 0, 0, packed)
    found = interval_mask(*call)
    assert isinstance(found, IntervalMask)
    assert torch.equal(
        attended(found.mask, found.shape), theirs.sdpa_mask(*call, allow_is_causal_skip=False)
    )


@pytest.mark.parametrize("how", ["a function of the user", "a static cache", "chunks"])
def test_what_is_no_interval_is_theirs(how: str) -> None:
    function, offset, options = theirs.causal_mask_function, 0, {}
    if how == "a static cache":
        offset = torch.tensor(2)
    elif how == "chunks":
        function = theirs.chunked_causal_mask_function(3, torch.zeros(2, dtype=torch.long))
    else:
        function = theirs.or_masks(function, lambda b, h, q, k: (q + k) % 3 == 0)
        options = {"use_vmap": True}
    found = interval_mask(2, 5, 7, offset, 0, function, **options)
    expected = theirs.sdpa_mask(2, 5, 7, offset, 0, function, allow_is_causal_skip=False, **options)
    assert type(found) is Tensor
    assert torch.equal(found, expected)


def test_it_is_a_tensor_to_whom_reads_it() -> None:
    full = theirs.sdpa_mask(2, 5, 5, allow_is_causal_skip=False)
    assert full is not None
    made = lambda: interval_mask(2, 5, 5)  # noqa: E731
    assert torch.equal(made()[:, :, 1:, :4], full[:, :, 1:, :4])
    assert torch.equal(torch.where(made(), 0.0, -1.0), torch.where(full, 0.0, -1.0))
    assert torch.equal(torch.cat([made(), full]), torch.cat([full, full]))
    assert torch.equal(made().expand(2, 3, 5, 5), full.expand(2, 3, 5, 5))
    assert made().to("cpu").shape == (2, 1, 5, 5)
    assert "IntervalMask" in repr(made())


READERS: dict[str, Any] = {
    "tolist": lambda m: m.tolist(),
    "numpy": lambda m: m.numpy(),
    "np.asarray": np.asarray,
    "np.from_dlpack": np.from_dlpack,
    "torch.from_dlpack": torch.from_dlpack,
    "copy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": lambda m: torch.load(saved(m), weights_only=True),
}


def saved(mask: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(mask, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("reader", READERS)
def test_memory_that_others_read_is_that_of_the_numbers(
    reader: str, floats: bool, cut: bool
) -> None:
    """The mask has no memory of its own, yet every reader gets its numbers.

    Before, NumPy read other memory by DLPack, and lists of the mask were refused.
    """
    booleans = theirs.sdpa_mask(2, 3, 3, allow_is_causal_skip=False)
    mask = interval_mask(2, 3, 3)
    assert mask is not None
    assert booleans is not None
    if cut:
        mask, booleans = mask[:1, :, 1:], booleans[:1, :, 1:]
    expected = torch.where(booleans, 0.0, -7.0) if floats else booleans
    read = READERS[reader](torch.where(mask, 0.0, -7.0) if floats else mask)
    assert torch.equal(torch.tensor(np.asarray(read).tolist()), expected)
    if reader in ("copy", "pickle", "torch.save") and not floats:
        least = torch.finfo(torch.float32).min
        assert torch.equal(read + torch.zeros(3), torch.where(booleans, 0.0, least))


def test_parts_of_it_lie_in_memory_as_those_of_a_plain_mask() -> None:
    """Parts have the strides of a plain mask: by strides, `flatten` decides to return a view."""
    plain, mask = theirs.sdpa_mask(2, 3, 3, allow_is_causal_skip=False), interval_mask(2, 3, 3)
    assert mask is not None
    assert plain is not None
    assert torch.equal(mask.flatten(0, 2), plain.flatten(0, 2))
    cut, plain = (x.clone()[..., 1:].expand(-1, 4, -1, -1) for x in (mask, plain))
    assert cut.stride() == plain.stride()
    assert torch.equal(cut.flatten(0, 1), plain.flatten(0, 1))


def test_what_is_written_into_it_counts() -> None:
    mask = interval_mask(1, 4, 4)
    assert mask is not None
    mask[:, :, 3, :2] = False
    found = attended(mask.mask, mask.shape)  # type: ignore[attr-defined]
    assert found[0, 0].sum(-1).tolist() == [1, 2, 3, 2]


def test_it_takes_no_memory() -> None:
    """A causal mask of a million queries and keys takes no memory."""
    tokens = 10**6
    mask = interval_mask(1, tokens, tokens, 0, 0, theirs.sliding_window_causal_mask_function(3))
    assert mask is not None
    assert mask.shape == (1, 1, tokens, tokens)
