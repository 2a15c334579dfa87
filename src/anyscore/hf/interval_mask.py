"""A mask of a model of transformers, whose numbers are made when they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_SUMS = torch.ops.aten.add, torch.ops.aten.add_
_COPIES = torch.ops.aten.clone, torch.ops.aten._to_copy


class IntervalMask(Tensor):
    """A mask (batch, 1, T_q, T_k) whose numbers are made when they are read.

    The numbers are booleans, True = may attend, or floats that are added to scores. Booleans that
    are added to floats are read as such floats: 0, and the least of their dtype.

    mask: says the same in few numbers; None = all may be attended.
    """

    _mask: Any
    _make: Callable[[], Tensor]
    _numbers: Tensor | None

    @staticmethod
    def __new__(
        cls,
        mask: Any,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: Any,
        make: Callable[[], Tensor],
        strides: tuple[int, ...] | None = None,
    ) -> IntervalMask:
        """Make a tensor without memory, with the strides of its numbers; None: contiguous."""
        found: IntervalMask = Tensor._make_wrapper_subclass(
            cls, shape, strides=strides, dtype=dtype, device=device
        )
        found._mask, found._make, found._numbers = mask, make, None
        return found

    @property
    def mask(self) -> Any:
        """The mask; the numbers once those were read, for they may have been written to."""
        return self._mask if self._numbers is None else self._numbers

    def numbers(self) -> Tensor:
        """Return the numbers, made at the first call."""
        if self._numbers is None:
            made = self._make()
            self._numbers = made if made.stride() == self.stride() else made.contiguous()
        return self._numbers

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"IntervalMask({self.mask}, shape={tuple(self.shape)})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute with the numbers."""
        is_sum = function.overloadpacket in _SUMS
        floats = (x.dtype for x in args if isinstance(x, Tensor) and x.is_floating_point())
        dtype = next(floats, None) if is_sum else None

        def read(x: IntervalMask) -> Tensor:
            numbers = x.numbers()
            return numbers if dtype is None else added(numbers, dtype)

        def keep(x: Tensor) -> Tensor:
            return of_booleans(x) if x.dtype == torch.bool else x

        args, kwargs = tree_map_only(cls, read, (args, kwargs or {}))
        found = function(*args, **kwargs)
        is_part = function.is_view or function.overloadpacket in _COPIES
        return tree_map_only(Tensor, keep, found) if is_part else found

    # The tensor itself has no memory: whoever reads memory gets that of the numbers.

    def tolist(self) -> Any:
        """Return the numbers as nested lists."""
        return self.numbers().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return the numbers as an array of NumPy."""
        return self.numbers().numpy(force=force)

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Lend the memory of the numbers."""
        return self.numbers().__dlpack__(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Keep the numbers in files; booleans stay booleans that hide where they are added."""
        numbers = self.numbers()
        if numbers.dtype != torch.bool:
            return numbers.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]
        return of_booleans, (numbers,)


def of_booleans(booleans: Tensor) -> IntervalMask:
    """Make a mask of booleans that were cut out of one, or come from a file."""
    shape, strides = tuple(booleans.shape), booleans.stride()
    mask = IntervalMask(None, shape, torch.bool, booleans.device, lambda: booleans, strides)
    mask.numbers()
    return mask


torch.serialization.add_safe_globals([of_booleans])


def added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Give a mask as floats that are added to scores: 0, and the least where it hides."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
