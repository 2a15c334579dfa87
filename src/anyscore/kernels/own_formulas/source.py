"""A formula as C++: a functor as in csrc/scorers/pairs.h, framed by csrc/attention/own_*.h."""

from __future__ import annotations

from collections.abc import Iterator

from anyscore.score.formula import Formula
from anyscore.score.formula.slopes import plain
from anyscore.score.formula.tape import ARITHMETIC, COMPARISONS, Row, reached

_FRAME = """\
#define ANYSCORE_ISA own
#define ANYSCORE_SUMS {sums}
#include "simd/functions.h"
#include "scorers/pairs.h"

namespace anyscore::own {{

struct Own {{
    template <class V> static ANYSCORE_INLINE V value(V a, V b) {{
{nan_value}
{value}
    }}
    template <class V> static ANYSCORE_INLINE void gradient(V a, V b, V& value, V& da, V& db) {{
{gradient}
{nan_gradient}
    }}
}};

}}  // namespace anyscore::own

#include "attention/own_{kind}.h"
"""
_NAN = """\
        if constexpr (std::is_arithmetic_v<V>)
            if (is_nan(a) || is_nan(b)) {then};"""


def cpp(formula: Formula, sums: str) -> str:
    """Return the source of a library with the kernels of a formula; sums: "float" or "double"."""
    rows, (value, by_a, by_b) = plain(*formula.slopes())
    gradient = [*_lines(rows, (value, by_a, by_b)), f"value = {_name(rows, value)};",
                f"da = {_name(rows, by_a)};", f"db = {_name(rows, by_b)};"]  # fmt: skip
    return _FRAME.format(
        kind=kind(formula),
        sums=sums,
        nan_value=_NAN.format(then="return nan<V>()"),
        value=_indented([*_lines(rows, (value,)), f"return {_name(rows, value)};"]),
        gradient=_indented(gradient),
        nan_gradient=_NAN.format(then="value = da = db = nan<V>()"),
    )


def kind(formula: Formula) -> str:
    """Return "pair" or "outer"."""
    return "pair" if formula.is_pair else "outer"


def _indented(lines: list[str]) -> str:
    return "\n".join(f"        {line}" for line in lines)


def _lines(rows: tuple[Row, ...], places: tuple[int, ...]) -> Iterator[str]:
    """Yield a declaration for each row that the given rows depend on."""
    for place in reached(rows, places):
        operation, *rest = rows[place]
        if operation == "number" or not rest:
            continue
        x = [_name(rows, one) for one in rest]
        if operation in COMPARISONS:
            yield f"const auto {_name(rows, place)} = {x[0]} {COMPARISONS[operation]} {x[1]};"
            continue
        if operation in ARITHMETIC:
            made = f"{x[0]} {ARITHMETIC[operation]} {x[1]}"
        elif operation == "neg":
            made = f"-{x[0]}"
        elif operation == "where":
            made = f"{x[0]} ? {x[1]} : {x[2]}"
        else:
            made = f"abs({x[0]})" if operation == "abs" else f"{operation}_each({x[0]})"
        yield f"const V {_name(rows, place)} = {made};"


def _name(rows: tuple[Row, ...], place: int) -> str:
    """Return the name of a row's variable."""
    operation, *rest = rows[place]
    if operation == "number":
        return f"constant<V>({rest[0]!r})"
    return f"x{place}" if rest else str(operation)
