"""The parity table: some cells are within budget, mistakes are reported, the page is right."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.by_pair import by_pair
from helpers.cases import MASKS, SCORES, WIDE
from parity import expected
from parity.age import age, lacking, newest
from parity.cells import IMPLEMENTATIONS, Cell, measure
from parity.extras import EXTRAS
from parity.frameworks import Framework, Torch
from parity.rows import ROWS, Row, has_empty_rows, has_padding, padded, rounded
from parity.summary import HEAD, main, summary

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


@by_pair("row", SOME, ids="-".join)
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


def result(cells: list[Cell], **others: Any) -> dict[str, Any]:
    """Return what `parity.run` writes of these cells."""
    found = {"framework": "torch", "versions": {"torch": "9.9"}, "machine": "Linux x, y"}
    found |= {"date": "2026-02-28", "cells": [*map(asdict, cells)]}
    return dict(json.loads(json.dumps(found | others)))


def largest(found: dict[str, Any]) -> dict[tuple[str, ...], tuple[float, str]]:
    names = "quantity", "workload", "variant"
    return {tuple(row[x] for x in names): (row["largest"], row["at"]) for row in found["rows"]}


def test_summary() -> None:
    found = summary([result(CELLS, commit="abc")])
    text = found["texts"]["cells"]
    assert text.startswith("**1 of 7 cells are outside their budget:**")
    assert "\n- PyTorch, fused, float32, gatv2: 1 cells, as gatv2, four (fused): `it | is`" in text
    assert "The library refused 1 cells with a reason: PyTorch 1." in text
    assert "Only a sample of the 6 calls was measured of PyTorch: 2 in float16." in text
    assert largest(found) == {
        ("values: eps", "PyTorch", "float32"): (2, "output: dot, none (fused)"),
        ("values: eps", "PyTorch", "float16"): (0.4, "output: dot, none (fused)"),
        ("gradients: eps", "PyTorch", "float32"): (31, "key: dot, none (fused)"),
        ("share of the budget: %", "PyTorch", "float32"): (200, "gatv2, four (fused)"),
        ("share of the budget: %", "PyTorch", "float16"): (20, "dot, none (fused)"),
        ("beyond, values: eps", "sink", "float16"): (0.3, "lse: dot + sink, four (fused)"),
        ("beyond, values: eps", "sink", "float32"): (0.3, "lse: dot + sink, none (fused)"),
    }
    assert (found["scores"], found["masks"]) == (["dot", "gatv2"], ["four", "none"])
    assert found["extras"] == ["sink, heads, four", "sink, heads, none"]
    assert (found["commit"], found["versions"]) == ("abc", {"torch": "9.9"})
    text = summary([result(CELLS[:1])])["texts"]["cells"]
    assert text.startswith("**All 1 cells are within their budget.**\n\nNo cell was refused.")


def test_every_cell_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.json").write_text(json.dumps(result(CELLS)))
    out, cells = tmp_path / "summary.json", tmp_path / "cells.csv"
    files = ["summary", tmp_path / "torch.json", "--cells", cells, "--out", out]
    monkeypatch.setattr("sys.argv", [*map(str, files)])
    main()
    head, *rows = csv.reader(cells.read_text(encoding="utf-8").splitlines())
    assert tuple(head) == HEAD
    assert len(rows) == len(CELLS)
    named = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["values"] for row in named] == ["0.5", "0.01", "2", "0.0", "", "0.4", "0.3", "0.3"]
    assert (named[2]["gradients"], named[1]["outside"]) == ("31", "it | is")
    assert (named[4]["refused"], named[6]["extra"]) == ("it cannot", "sink")
    assert json.loads(out.read_text(encoding="utf-8")) == summary([result(CELLS)])


def test_the_summary_is_as_old_as_its_oldest_part() -> None:
    found = summary([result([]), result([], date="2026-03-01")])
    assert age(found, date(2026, 3, 2)) == 2


def test_names_that_the_summary_lacks() -> None:
    """`lacking` names each score, mask and extra that is newer than the measurement."""
    found = newest()
    measured = {*found["scores"], *found["masks"], *found["extras"]}
    every = {*SCORES, *MASKS, *(", ".join((extra, *at)) for _, *at, extra in ROWS if extra)}
    assert set(lacking(found)) == every - measured
    without = {"gaussian", "causal_end"}
    fewer = {k: [x for x in found[k] if x not in without] for k in ("scores", "masks", "extras")}
    assert set(lacking(fewer)) - set(lacking(found)) == without
