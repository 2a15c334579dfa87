"""A mask for models of transformers, stored as intervals; its numbers are computed when read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_SUMS = torch.ops.aten.add, torch.ops.aten.add_
_COPIES = torch.ops.aten.clone, torch.ops.aten._to_copy


class IntervalMask(Tensor):
    """A tensor (batch, 1, T_q, T_k) whose numbers are computed when read.

    The numbers are booleans, True = may attend, or floats to add to scores. In a sum with floats,
    True becomes 0 and False the lowest number of their dtype.

    mask: the same mask as intervals; None: no key is masked.
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
        """Create a tensor without memory. strides: of the numbers; None: contiguous."""
        found: IntervalMask = Tensor._make_wrapper_subclass(
            cls, shape, strides=strides, dtype=dtype, device=device
        )
        found._mask, found._make, found._numbers = mask, make, None
        return found

    @property
    def mask(self) -> Any:
        """The mask; after a read of the numbers, the numbers: the reader may have changed them."""
        return self._mask if self._numbers is None else self._numbers

    def numbers(self) -> Tensor:
        """Return the numbers; the first call computes them."""
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

    # The tensor itself has no memory: readers of memory get the memory of the numbers.

    def tolist(self) -> Any:
        """Return the numbers as nested lists."""
        return self.numbers().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return the numbers as a NumPy array."""
        return self.numbers().numpy(force=force)

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Lend the memory of the numbers."""
        return self.numbers().__dlpack__(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the numbers; booleans become an `IntervalMask` again when loaded."""
        numbers = self.numbers()
        if numbers.dtype != torch.bool:
            return numbers.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]
        return of_booleans, (numbers,)


def of_booleans(booleans: Tensor) -> IntervalMask:
    """Return an `IntervalMask` of booleans, which a slice or a file holds."""
    shape, strides = tuple(booleans.shape), booleans.stride()
    mask = IntervalMask(None, shape, torch.bool, booleans.device, lambda: booleans, strides)
    mask.numbers()
    return mask


torch.serialization.add_safe_globals([of_booleans])


def added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask as floats to add to scores: 0, or the lowest number of dtype if masked."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
