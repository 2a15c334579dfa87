"""Hypothesis draws whole calls of `attention`."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from fuzz.beside import besides, far_besides
from fuzz.drawn import STORE, Call, lead_of
from fuzz.exact import Shape
from fuzz.formulas import KINDS
from fuzz.mask_specs import bounds, specs
from fuzz.outers import FORMULAS
from helpers.table_scores import ROWS

SCALES = {
    "ScaledDot": "scale", "Bilinear": "scale", "Lorentz": "sigma",
    **{kind: ROWS[kind].scaled.of for kind in KINDS if ROWS[kind].scaled},
}  # fmt: skip
"""The field of each score that is a scale."""
EXACT = "Dot", "Laplace"
"""Scores that have no rounding for small integers."""
LAYOUTS = ("dense", "dense", "columns", "every other", "wider", "backwards", "read-only")
DENSE = ("dense", "wider", "read-only")
SOFTCAPS = (*[0.0] * 6, 0.5, 3.0, 30.0, 1000.0)
"""Mostly no cap; otherwise from one that flattens nearly all scores to one beyond most scores."""
WORK = 120_000
"""Largest number of elements of a call: query-key pairs times widths."""

MATRIX = 2**19
"""Largest number of elements of a projection of one head."""

TOKENS = st.sampled_from((1, 2, 3, 5, 7, 16, 17, 31, 33, 63, 64, 65, 80, 129, 0))
WIDTHS = st.sampled_from((1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 33, 64, 65, 70))
WIDE = st.sampled_from((128, 257, 512, 1024, 2048, 4096))


@st.composite
def calls(draw: st.DrawFn, framework: str, gradients: bool = True) -> Call:
    some = st.integers(0, 9)
    dtype = draw(
        st.sampled_from(("float32", "float32", "float32", "float64", "bfloat16", "float16"))
    )
    half = STORE[dtype] > 0
    far = not half and draw(some) == 0
    exact = far and draw(some) < 7
    kind = draw(st.sampled_from(EXACT if exact else KINDS))
    lead, groups = _leads(draw)
    widths = WIDE if draw(some) == 0 and not half else WIDTHS
    d_q = d_k = draw(widths)
    d_v = draw(WIDE if draw(some) == 0 else WIDTHS | st.just(0))
    hidden = min(draw(widths), MATRIX // d_q)
    if kind in ("Additive", "Concat", "GATv2", "Bilinear"):
        d_k = draw(WIDTHS)
    parameters: dict[str, Any] = {}
    q_lead, k_lead, v_lead = (_own_lead(draw, lead, groups, at == 0) for at in range(3))
    if groups > 1 and k_lead[-1] == v_lead[-1] == 1:
        k_lead = (*k_lead[:-1], lead[-1] // groups)
    whole = lead_of((*q_lead, 1, 1), (*k_lead, 1, 1), (*v_lead, 1, 1), groups)

    def own() -> Shape:
        """Draw leading dimensions of a parameter: none, the heads, or all."""
        return draw(st.sampled_from(((), (), whole[-1:], whole)))

    if kind in ("Additive", "GATv2"):
        if draw(some) < 3:
            d_q, parameters["W_q"] = hidden, None
        else:
            parameters["W_q"] = (*own(), hidden, d_q)
        if draw(some) < 3:
            d_k, parameters["W_k"] = hidden, None
        else:
            parameters["W_k"] = (*(own() if groups == 1 else ()), hidden, d_k)
        parameters["w_v"] = (*own(), hidden)
    elif kind == "Concat":
        parameters["W"] = (*(own() if groups == 1 else ()), hidden, d_q + d_k)
        parameters["w_v"] = (*own(), hidden)
    elif kind == "Bilinear":
        parameters["W"] = (*own(), d_q, d_k)
    elif kind == "Trilinear":
        for name in ("w_q", "w_k", "w_p"):
            parameters[name] = (*(own() if groups == 1 or name != "w_k" else ()), d_q)
    if kind in ("Additive", "Concat"):
        parameters["bias"] = draw(st.sampled_from((None, (*own(), hidden))))
    row = ROWS[kind]
    distances = row.pair in ("squared", "absolute") and not row.outer
    natural = math.sqrt(max(d_q, 1)) if distances else 1.0
    if kind in SCALES:
        number = round(natural * draw(st.sampled_from((1.0, 0.5, 1.7))), 3)
        own_sigma = own if not row.of_both or groups == 1 else tuple  # sigma has the heads of keys
        choices = [number, own_sigma(), own_sigma()] + [None] * (SCALES[kind] == "scale")
        parameters[SCALES[kind]] = 1.0 if exact else draw(st.sampled_from(choices))
    for name in row.fixed:
        parameters[name] = draw(st.sampled_from((1.0, 2.5, 8)))
    queries, keys = draw(TOKENS), draw(TOKENS)
    pair = hidden if kind in ("Additive", "Concat", "GATv2") else max(d_q, d_k)
    limit = WORK // 3 if dtype == "float64" else WORK
    while math.prod(whole) * queries * keys * (pair + d_v) > limit and max(queries, keys) > 1:
        queries, keys = (queries // 2, keys) if queries > keys else (queries, keys // 2)
    exotic = draw(some) < 3
    data = draw(st.sampled_from(
        ("small", "integers", "zero rows", "alike") + ("opposite", "shifted") * (not half)
    )) if exotic else "normal"  # fmt: skip
    data = "integers" if exact else data
    magnitudes = (1.0, 1.0, 0.1, 3.0) if half else (1.0, 1.0, 1.0, 1e-2, 10.0, 100.0, 1e4)
    poison = None
    if draw(some) == 0:
        what = draw(st.sampled_from((math.nan, math.inf, -math.inf)))
        poison = draw(st.sampled_from(("query", "key", "value"))), what
    # NumPy sums arrays that are not dense one by one.
    layouts = st.sampled_from(LAYOUTS if max(d_q, d_k, hidden) < 128 else DENSE)
    fill = draw(st.sampled_from((None, math.nan, math.inf, -math.inf, 1e4)))
    prepared = draw(some) == 0
    if prepared:  # keys are prepared without the mask
        fill = poison = None
    rate = draw(st.sampled_from((0.0, 0.0, 0.0, 0.1, 0.5, 0.9)))
    sides = far_besides(whole, queries, keys, dtype) if far else besides(whole, queries, keys)
    beside = draw(sides)
    valid_lens = draw(bounds(whole, queries, keys)) if draw(some) < 2 else None
    has_function = not far and not row.outer and draw(some) < 2
    return Call(
        framework, dtype, kind, parameters,
        (*q_lead, queries, d_q), (*k_lead, keys, d_k), (*v_lead, keys, d_v), groups,
        draw(specs(whole, queries, keys)), valid_lens, draw(st.booleans()),
        data, 1.0 if exact else draw(st.sampled_from(magnitudes)),
        natural if distances else draw(st.sampled_from((1.0, 0.5))),
        fill, poison,
        (draw(layouts), draw(layouts), draw(st.sampled_from(LAYOUTS))),
        draw(st.sampled_from(SOFTCAPS)), rate, draw(st.integers(0, 2**64 - 1)) if rate else 0,
        draw(st.booleans()), beside.normalizer == "softmax" and draw(st.booleans()),
        gradients and draw(st.booleans()),
        draw(st.booleans()), prepared, draw(st.integers(0, 2**16)),
        beside, exact, draw(st.sampled_from(sorted(FORMULAS))) if has_function else "",
    )  # fmt: skip


def _leads(draw: st.DrawFn) -> tuple[Shape, int]:
    """Draw (leading dimensions with heads last, query heads for each key head)."""
    sizes = st.sampled_from((1, 2, 3, 2, 0) if draw(st.integers(0, 9)) == 0 else (1, 2, 3, 2))
    lead = tuple(draw(st.lists(sizes, max_size=3)))
    if len(lead) >= 2 and draw(st.booleans()):
        groups = draw(st.sampled_from((2, 3)))
        return (*lead[:-1], 2 * groups), groups
    return lead, 1


def _own_lead(draw: st.DrawFn, lead: Shape, groups: int, of_query: bool) -> Shape:
    """Draw one tensor's leading dimensions: some are 1, and the first may be missing."""
    first = draw(st.integers(0, max(len(lead) - (2 if groups > 1 else 0), 0)))
    first = first if draw(st.integers(0, 3)) == 0 else 0
    own = [1 if draw(st.integers(0, 4)) == 0 else n for n in lead]
    if groups > 1:
        own[-1] = lead[-1] if of_query else own[-1] if own[-1] == 1 else lead[-1] // groups
    return tuple(own[first:])
