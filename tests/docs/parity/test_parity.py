"""The parity table: some cells are within budget, mistakes are reported, the page is right."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.cases import MASKS, SCORES, WIDE
from parity import expected
from parity.age import PAGE, age, lacking
from parity.cells import IMPLEMENTATIONS, Cell, measure
from parity.extras import EXTRAS
from parity.frameworks import Framework, Torch
from parity.page import render
from parity.rows import ROWS, Row, has_empty_rows, has_padding, padded, rounded

SOME: list[Row] = [
    ("additive", "heads", "lengths", ""),
    ("cosine_tensor", "heads", "four", ""),
    ("gaussian", "heads", "boolean_full", ""),
    ("scaled_dot", "grouped_6_2", "causal_and_lengths", ""),
    *((score, "square", "four", "") for score in WIDE),
    *(row for row in ROWS if row[3] and row[:2] == ("euclidean", "heads") and row[2] == "lengths"),
    *(row for row in ROWS if row[3] == "edges" and row[2] == "sequences"),
    *(row for row in ROWS if "capped" in row[3] and row[:3] == ("additive", "grouped_6_2", "four")),
]
ROW = SOME[0]


@pytest.mark.parametrize("row", SOME, ids="-".join)
@pytest.mark.parametrize("framework", [Framework, Torch])
def test_cells_are_within_budget(framework: type[Framework], row: Row) -> None:
    for dtype in ("float32", "float64", "float16"):
        for impl in IMPLEMENTATIONS:
            cell = measure(framework(), row, dtype, impl, expected.of(row, dtype))
            assert (cell.outside, cell.refused) == ([], None)
            assert set(EXTRAS[row[3]].results) <= cell.errors.keys()
            assert ("gradient of query" in cell.errors) == (framework is Torch)
            assert 0 < cell.used <= 1


class Wrong(Torch):
    """An adapter whose numbers are all off by the share `part`."""

    part = 1e-3

    def numbers(self, x: Any) -> Any:
        return super().numbers(x) * (1 + self.part)


class Leaking(Framework):
    """An adapter that turns exact zeros into tiny numbers."""

    def numbers(self, x: Any) -> Any:
        return np.where(x == 0, np.float32(1e-30), x)


class Wide(Framework):
    """An adapter whose results are float64 for inputs of any dtype."""

    def numbers(self, x: Any) -> Any:
        return np.asarray(x, np.float64)


class Breaking(Framework):
    def gradients(self, *arguments: Any) -> Any:
        raise RuntimeError("it broke")


def test_what_is_wrong_is_reported() -> None:
    names = ["output", "output", "output", "weights", "lse", "lse", "gradient of query"]
    found = measure(Wrong(), ROW, "float32", "fused", expected.of(ROW, "float32"))
    assert {text.split(" is off by")[0] for text in found.outside} >= set(names)
    assert min(found.errors.values()) > 1000
    assert found.used > 1

    def outside(framework: type[Framework]) -> str:
        cell = measure(framework(), ROW, "float32", "reference", expected.of(ROW, "float32"))
        return "; ".join(cell.outside)

    assert "output is not 0 where nothing is attended" in outside(Leaking)
    assert "output is float64, expected float32" in outside(Wide)
    assert outside(Breaking) == "RuntimeError: it broke"


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ("", "gradient of W_q"),
        ("log_weights", "log_weights"),
        ("scores", "gradient of key"),
        ("sink", "gradient of sink"),
        ("t5", "gradient of bias_after"),
        ("entmax15", "weights"),
        ("edges", "gradient of value"),
    ],
)
def test_one_that_is_wrong_is_reported(extra: str, name: str) -> None:
    row = (*ROW[:2], "sequences" if extra == "edges" else ROW[2], extra)
    right = expected.of(row, "float32")
    wrong = replace(right, exact={**right.exact, name: right.exact[name] * 1.001})
    cell = measure(Torch(), row, "float32", "fused", wrong)
    assert {text.split(" is off by")[0] for text in cell.outside} == {name}


def test_refusals_are_no_failures() -> None:
    row = ("callable", "heads", "lengths", "")
    cell = measure(Framework(), row, "float32", "fused", expected.of(row, "float32"))
    assert cell.outside == []
    assert cell.refused is not None
    assert "the score is a callable" in cell.refused


def test_rounding_is_that_of_the_dtype() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = np.random.default_rng(0).standard_normal(1000)
    for dtype in (np.float16, bfloat16):
        same = x.astype(np.float32).astype(dtype).astype(np.float64)
        np.testing.assert_array_equal(rounded(x, np.dtype(dtype).name), same)


def test_rows() -> None:
    """Rows have every score with every mask, and NaN and empty rows where a mask gives them."""
    textbook = [row for row in ROWS if not row[3]]
    assert {(score, mask) for score, shape, mask, _ in textbook if shape == "heads"} == {
        (score, mask) for score in SCORES for mask in MASKS
    }
    assert {row[3] for row in ROWS} == set(EXTRAS)
    for row, nan, empty in (
        (("dot", "heads", "none", ""), False, False),
        (("dot", "heads", "length", ""), True, False),
        (("dot", "heads", "length_0", ""), True, True),
        (("euclidean", "heads", "none", "bias"), False, False),
        (("euclidean", "heads", "lengths", "bias"), True, True),
    ):
        assert (has_padding(row), has_empty_rows(row)) == (nan, empty)
        assert any(
            "bias" in name and np.isnan(x).any() for name, x in padded(row, "float32").items()
        ) == (nan and row[3] == "bias")
    given = padded(("dot", "heads", "length", ""), "float32")
    assert np.isnan(given["key"][:, :, 3:]).all()
    assert not np.isnan(given["key"][:, :, :3]).any()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    expected.write(tmp_path / "exact.npz", ("float32", "float64"), [ROW])
    read = expected.reader(tmp_path / "exact.npz")
    for dtype in ("float32", "float64"):
        found, same = read(ROW, dtype), expected.of(ROW, dtype)
        assert (found.plain, found.terms) == (same.plain, same.terms)
        assert found.exact.keys() == same.exact.keys()
        for name, x in same.exact.items():
            np.testing.assert_array_equal(found.exact[name], x)


CELLS = [
    Cell(("dot", "heads", "four", ""), "float32", "fused", True, True, {"output": 0.5}, 0.1),
    Cell(
        ("gatv2", "heads", "four", ""),
        "float32",
        "fused",
        True,
        True,
        {"lse": 0.01},
        2.0,
        ["it | is"],
    ),
    Cell(
        ("dot", "heads", "none", ""),
        "float32",
        "fused",
        errors={"output": 2, "gradient of key": 31},
    ),
    Cell(("dot", "rank_2", "none", ""), "float32", "fused", errors={"weights": 0.0}),
    Cell(("gatv2", "heads", "none", ""), "float32", "fused", refused="it cannot"),
    Cell(("dot", "heads", "none", ""), "float16", "fused", errors={"output": 0.4}, used=0.2),
    Cell(("dot", "heads", "four", "sink"), "float16", "fused", errors={"lse": 0.3}, used=0.1),
    Cell(("dot", "heads", "none", "sink"), "float32", "fused", errors={"lse": 0.3}),
]


def test_page() -> None:
    def page(cells: list[Cell]) -> str:
        found = {"framework": "torch", "versions": {"torch": "9.9"}, "machine": "Linux x, y"}
        return render([json.loads(json.dumps({**found, "cells": [*map(asdict, cells)]}))])

    text = page(CELLS)
    for line in (
        "**1 of 7 cells are outside their budget:**",
        "|PyTorch|fused|float32|gatv2|1|gatv2, four|`it / is`|",
        "|PyTorch|fused|float32|5|2|output: dot, none|31|key: dot, none|200%: gatv2, four|",
        "|PyTorch|fused|float16|2|0.4|output: dot, none|–||20%: dot, none|",
        "|PyTorch|fused|gatv2|1|`it cannot`|",
        "|PyTorch|torch 9.9|Linux x, y|",
        "**Only a sample** of the 6 rows: PyTorch float16 (2 rows).",
        "<summary>PyTorch</summary>",
        "#### PyTorch, fused, float32",
        "|mask, heads (2, 3)||dot|gatv2|",
        "|four|NaN ∅|0.5|**✗** <.1|",
        "|none||2/31|–|",
        "|rank_2, none||0|",
        "|sink|PyTorch|float16|1|0.3|lse: dot + sink, four|–||10%: dot + sink, four|",
        "|sink|PyTorch|float32|1|0.3|lse: dot + sink, none|–||0%: dot + sink, none|",
        "|sink, heads, none||0.3|",
    ):
        assert line in text.splitlines()
    assert "fused, float16" not in text
    assert "**All 1 cells are within their budget.**" in page(CELLS[:1]).splitlines()


def test_the_page_says_how_old_it_is() -> None:
    found = {"framework": "torch", "versions": {"torch": "9.9"}, "machine": "x", "cells": []}
    text = render([{**found, "date": "2026-02-28"}, {**found, "date": "2026-03-01"}])
    assert age(text, date(2026, 3, 2)) == 2  # the age of the oldest part
    assert age("It does not say.", date(2026, 3, 2)) is None


def test_what_the_page_lacks_is_named() -> None:
    """`lacking` names each score, mask and extra that is newer than the page's measurement."""
    text = PAGE.read_text("utf-8")
    head = next(line for line in text.splitlines() if line.startswith("|mask, heads"))
    names = {line.split("|")[1] for line in text.splitlines() if line.startswith("|")}
    measured = set(head.split("|")) | names
    every = {*SCORES, *MASKS, *(", ".join((extra, *at)) for _, *at, extra in ROWS if extra)}
    assert set(lacking(text)) == every - measured
    fewer = text.replace("|gaussian|", "|").replace("|causal_end|", "|of another name|")
    assert set(lacking(fewer)) - set(lacking(text)) == {"gaussian", "causal_end"}
