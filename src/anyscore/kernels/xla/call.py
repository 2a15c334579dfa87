"""A call of the C++ core through XLA's foreign function interface, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np

from anyscore.call.operands import Settings
from anyscore.ops import Array

Shape: TypeAlias = tuple[int, ...]
_Call = TypeVar("_Call", bound="FfiCall")


@dataclass(frozen=True)
class FfiCall:
    """A call without its operands; `__call__` takes the operands and returns a list of results.

    function: "forward", "backward", "prepare_keys" or "sparse". operands: the names of the
    operands, in order. results: the name and shape of each result. acc_dtype: the dtype of all
    results. Operands and results are (*lead or 1, ...), with the lead of the settings.
    """

    function: str
    settings: Settings
    operands: tuple[str, ...]
    results: tuple[tuple[str, Shape], ...]
    acc_dtype: str

    def __call__(self, *operands: Array) -> list[Array]:
        results = [jax.ShapeDtypeStruct(shape, self.acc_dtype) for _, shape in self.results]  # type: ignore[no-untyped-call]
        return list(jax.ffi.ffi_call(f"anyscore_{self.function}", results)(*operands, **self.attrs))

    @property
    def lead(self) -> Shape:
        return self.settings.lead

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of the call, as `csrc/bindings/xla.cpp` declares them."""
        s = self.settings
        attrs: dict[str, Any] = {"pair": s.pair, "names": " ".join(self.operands)}
        if self.function not in ("forward", "backward"):
            return attrs  # XLA refuses an attribute that a target does not declare
        # The operand `counter` replaces the period, which may be a symbol.
        return attrs | {"numbers": np.array(s._replace(dropout_period=1).numbers, np.float64)}

    def resized(self: _Call, lead: Shape, shapes: Sequence[Shape]) -> _Call:
        """Return the same call with other leading dimensions, and results of these shapes."""
        names = (name for name, _ in self.results)
        settings = self.settings._replace(lead=lead)
        return replace(self, settings=settings, results=tuple(zip(names, shapes, strict=True)))
