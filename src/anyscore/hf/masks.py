"""The mask function for models of transformers: masks as intervals, if possible.

A model calls the mask function with the name of its attention, and expects a tensor
(batch, 1, T_q, T_k). Here the tensor is an `IntervalMask`. anyscore's attention reads the
intervals; any other reader gets the numbers, computed at that moment. Numbers are booleans, as for
"sdpa". Models that cannot use "sdpa" get floats, as for "eager": some of their layers add the mask
to scores themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers import masking_utils as theirs
from transformers.masking_utils import sdpa_mask

from anyscore.backends.torch.modes import is_compiling, is_transforming
from anyscore.hf.interval_mask import IntervalMask, added
from anyscore.masks.objects import Interval, Keys, Mask, Window
from anyscore.ops.torch_masked import is_jit_tracing


def interval_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = theirs.causal_mask_function,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """Return the mask of a model: an `IntervalMask`, or a boolean tensor; None: no key is masked.

    Arguments: as for `transformers.masking_utils.sdpa_mask`. Intervals replace its boolean matrix
    for causal, sliding and bidirectional masks, packed sequences, and padding. The result is a
    matrix under compilation, for mask functions of the user, and for a static cache, whose
    position is a tensor. None is returned only if the model allows None. Models that cannot use
    "sdpa" get floats in place of booleans, as in `eager_mask`.

    Raises:
        ValueError: an attention_mask that is not (batch, keys).
    """
    if attention_mask is not None and (
        attention_mask.dim() != 2 or attention_mask.shape[0] not in (1, batch_size)
    ):
        raise ValueError(wrong_shape(attention_mask, batch_size, q_length, kv_offset + kv_length))

    dtype = torch.bool
    if not _takes_booleans(type(options.get("config"))):
        dtype = options.get("dtype", torch.float32)

    def boolean() -> Tensor:
        found: Any = sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,  # type: ignore[arg-type]
            kv_offset,
            mask_function,
            attention_mask,
            **{**options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
        )
        return cast(Tensor, found)

    def numbers() -> Tensor:
        return boolean() if dtype == torch.bool else added(boolean(), dtype)

    if is_compiling() or is_jit_tracing() or is_transforming():
        return numbers()
    shape, device = (batch_size, 1, q_length, kv_length), options.get("device", "cpu")
    band = None
    if not (options.get("use_vmap") or isinstance(q_offset, Tensor)):
        band = _read(mask_function)
    if band is None:
        mask: Any = boolean()
        if dtype == torch.bool:
            return cast(Tensor, mask)
        return IntervalMask(mask, shape, dtype, device, lambda: added(mask, dtype))
    left, right, documents = band
    offset = q_offset - kv_offset
    mask = documents
    covers_left = left is None or offset + q_length - 1 <= left
    covers_right = right is None or offset + right >= kv_length - 1
    if not (covers_left and covers_right):
        window = Window(
            None if covers_left else left, None if covers_right else right, None, offset
        )
        mask = window if mask is None else mask & window
    if attention_mask is not None:
        padding = _padding(attention_mask, kv_length, kv_offset)
        if padding is not None:
            mask = padding if mask is None else mask & padding
    may_skip = options.get("allow_is_bidirectional_skip") or (
        dtype == torch.bool and options.get("allow_is_causal_skip", True)
    )
    return None if mask is None and may_skip else IntervalMask(mask, shape, dtype, device, numbers)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _takes_booleans(config: type) -> bool:
    """Check if all models of a config class, or of its nearest parent, take masks of "sdpa"."""
    models = _subclasses(PreTrainedModel)
    for parent in config.__mro__:
        of_config = [model for model in models if model.config_class is parent]
        if of_config:
            return all(model._supports_sdpa for model in of_config)
    return True


def _subclasses(cls: type) -> list[Any]:
    """List all subclasses of a class."""
    children: list[Any] = cls.__subclasses__()
    return [x for child in children for x in (child, *_subclasses(child))]


def wrong_shape(mask: Tensor, batch: int, queries: int, keys: int) -> str:
    """Return the error message for a user's mask of another shape."""
    return (
        f"attention_mask has shape {tuple(mask.shape)}, expected (batch, keys) or (batch, 1, "
        f"queries, keys): here {(batch, keys)} or {(batch, 1, queries, keys)}."
    )


def _inner(function: Callable[..., Any]) -> Any:
    """Return the code object of the closures that a function of transformers returns."""
    return function.__code__


_AND = _inner(theirs.and_masks(theirs.causal_mask_function))
_SLIDING = _inner(theirs.sliding_window_overlay(1))
_SLIDING_BOTH = _inner(theirs.sliding_window_bidirectional_overlay(1))
_PACKED = _inner(theirs.packed_sequence_mask_function(torch.zeros(1, 1)))
_REMAPPED = _inner(
    theirs.remap_positions_for_packed_sequence(theirs.causal_mask_function, torch.zeros(1, 1))
)


def _read(function: Any) -> tuple[int | None, int | None, Mask | None] | None:
    """Read a mask function of transformers. Return (left, right, documents); None if unknown.

    left, right: numbers of keys before and after the query's position. documents: the mask of
    packed sequences.
    """
    if function is theirs.causal_mask_function:
        return None, 0, None
    if function is theirs.bidirectional_mask_function:
        return None, None, None
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    free = dict(
        zip(getattr(code, "co_freevars", ()), (c.cell_contents for c in cells), strict=True)
    )
    if code in (_SLIDING, _SLIDING_BOTH):
        width = free.get("sliding_window")
        if not isinstance(width, int) or width < 1:
            return None
        return (width - 1, None, None) if code is _SLIDING else (width, width, None)
    if code is not _AND:
        return None
    parts = free.get("mask_functions", ())
    if [getattr(part, "__code__", None) for part in parts] == [_PACKED, _REMAPPED]:
        return _read_packed(*parts)
    left = right = None
    for part in parts:
        band = _read(part)
        if band is None or band[2] is not None:
            return None
        left = band[0] if left is None else left if band[0] is None else min(left, band[0])
        right = band[1] if right is None else right if band[1] is None else min(right, band[1])
    return left, right, None


def _read_packed(packed: Any, remapped: Any) -> tuple[int | None, int | None, Mask | None] | None:
    """Read the mask of packed sequences. Return (left, right, sequences) as `_read`.

    Positions within a sequence increase by one, so a band of positions within a sequence is also a
    band of the whole.
    """
    (numbers,) = (cell.cell_contents for cell in packed.__closure__)
    inner = dict(
        zip(
            remapped.__code__.co_freevars,
            (cell.cell_contents for cell in remapped.__closure__),
            strict=True,
        )
    )
    band = _read(inner.get("mask_function"))
    if band is None:
        return None
    numbers = numbers.contiguous()
    start = torch.searchsorted(numbers, numbers)
    stop = torch.searchsorted(numbers, numbers, right=True)
    return band[0], band[1], Interval(start[:, None], stop[:, None])


def _padding(keep: Tensor, kv_length: int, kv_offset: int) -> Mask | None:
    """Return the mask of a padding mask (batch, tokens), keys from an offset on; None if all kept.

    One sequence with padding before it, after it or around it is an interval. Keys beyond the
    tokens are padding.
    """
    padded = cast(Tensor, theirs.prepare_padding_mask(keep, kv_length, kv_offset))
    keep = padded[:, kv_offset : kv_offset + kv_length].bool()
    if not kv_length:
        return None
    some = keep.to(torch.uint8)
    count = keep.sum(-1)
    start = some.argmax(-1)
    stop = kv_length - some.flip(-1).argmax(-1)
    stop = torch.where(count == 0, start, stop)
    all_kept, one_run, none_before, none_after = torch.stack(
        [
            (count == kv_length).all(),
            (stop - start == count).all(),
            (start == 0).all(),
            (stop == kv_length).all(),
        ]
    ).tolist()
    if all_kept:
        return None
    if not one_run:
        return Keys(keep)
    return Interval(None if none_before else start, None if none_after else stop)
