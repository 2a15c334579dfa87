"""Tables and sentences of pages have the figures of measurements/."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "measurements").glob("*-20*.json"))
ROW = {"workload", "variant", "dtype", "quantity"}
KEYS = {"date", "commit", "published", "machine", "versions", "command", "note", "rows"}
MACHINE = {"processor", "instructions", "threads", "cores", "load"}


@pytest.fixture(scope="module")
def measurements() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "docs"))
    yield importlib.import_module("measurements")
    sys.path.remove(str(ROOT / "docs"))


def test_blocks_are_as_the_files_say(measurements: ModuleType) -> None:
    """`python docs/measurements.py` writes them anew."""
    shown = set()
    for page in measurements.PAGES:
        text = page.read_text(encoding="utf-8")
        assert measurements.filled(text) == text, f"{page}: run `python docs/measurements.py`"
        names = re.findall(r"^<!-- measurements: ([^,>]+)", text, re.MULTILINE)
        assert len(names) == len(re.findall("^<!-- end -->$", text, re.MULTILINE)), page
        shown |= set(names)
    for file in FILES:  # each is shown, or an older run of a name that is
        assert {file.stem, file.stem[:-11]} & shown, file


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_files_have_the_fields(file: Path) -> None:
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found.keys() >= KEYS
    assert found["machine"].keys() >= MACHINE
    assert found["date"] in (None, date.fromisoformat(file.stem[-10:]).isoformat())
    assert found["commit"] or found["published"]
    for row in found["rows"]:
        assert row.keys() > ROW
        assert row.keys() - ROW in ({"median", "spread"}, {"largest", "at"})
        number, spread = row.get("largest", row.get("median")), row.get("spread")
        assert number is not None or spread is not None
        assert spread is None or number is None or spread[0] <= number <= spread[1]
    keys = [
        (row["workload"], row["variant"], row["dtype"], row["quantity"]) for row in found["rows"]
    ]
    assert len(set(keys)) == len(keys)


def figures(module: ModuleType, file: str, quantity: str) -> dict[tuple[str, str], float]:
    """Return medians by workload and variant, the newest of each, in the first dtype."""
    found: dict[tuple[str, str], float] = {}
    for row in (row for measured in module.read_all(file) for row in measured["rows"]):
        if row["quantity"] == quantity:
            found.setdefault((row["workload"], row["variant"]), row["median"])
    return found


def sentences(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield pages and texts with figures that are computed from the files."""
    for file, pages in (("xeon", ["README.md", "docs/benchmarks.md"]), ("zen5", [])):
        speed = figures(module, file, "speed: time ÷ anyscore")
        dot = {work: x for (work, variant), x in speed.items() if variant == "dot"}
        ratios = sorted(1 / x for x in dot.values())
        yield "docs/benchmarks.md", f"{ratios[0]:.1f} to {ratios[-1]:.1f} times"
        compiled = sorted(speed[work, "compile"] / x for work, x in dot.items())
        for page in pages:
            yield page, f"{ratios[0]:.1f} to {ratios[-1]:.1f} times"
            yield page, f"{compiled[0]:.1f} to {compiled[-1]:.0f} times"
            yield page, f"{speed['decoder step, with gradients', 'eager']:.2f} of anyscore's time"
    memory = figures(module, "zen5", "memory: MiB")
    yield "README.md", f"{memory['long', 'anyscore']:.0f} MiB"
    yield "README.md", f"{memory['long', 'eager'] / 1024:.0f} GiB"
    growth = figures(module, "xeon-2026-11-21", "growth: MiB")
    yield "docs/benchmarks.md", f"{growth['16,384 tokens', 'anyscore']:.0f} MiB"
    yield "docs/benchmarks.md", f"{growth['16,384 tokens', 'anyscore, with gradients']:.0f} MiB"
    products = figures(module, "xeon-dot", "dot: time ÷ anyscore's dot product")
    some = sorted(x for (work, variant), x in products.items() if variant == "dot")
    yield "docs/benchmarks.md", f"takes {some[1]:.2f} to {some[-1]:.2f} of the time of `ScaledDot`"
    yield "docs/benchmarks.md", f"It takes {some[0]:.2f} for the smallest call with gradients"
    ms = figures(module, "gpu", "ms")
    ours, compiled_ms, dot_ms = (ms["long batch", x] for x in ("anyscore", "compile", "dot"))
    yield "README.md", f"{compiled_ms / ours:.1f} times as fast as `torch.compile`"
    yield "README.md", f"a dot product is {ours / dot_ms:.0f} times as fast"
    yield "docs/gpu.md", f"{ours / dot_ms:.0f} times as long"
    others = f"`torch.compile` took {compiled_ms} ms, Pallas {ms['JAX', 'Pallas, forward']} ms"
    yield "README.md", f"{ours:.1f} ms by Triton. {others}, and PyTorch's dot product {dot_ms:.1f}"


def test_sentences_have_the_figures_of_the_files(measurements: ModuleType) -> None:
    for page, text in sentences(measurements):
        assert text in (ROOT / page).read_text(encoding="utf-8"), f"{page} does not say {text!r}"


@pytest.fixture
def small(measurements: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Give two runs of one name."""
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)

    def row(workload: str, variant: str, quantity: str, median: Any, **others: Any) -> Any:
        named = {"workload": workload, "variant": variant, "dtype": "float32", "quantity": quantity}
        return named | {"median": median, "spread": None} | others

    about = {
        "commit": None, "published": "abc", "versions": {"torch": None, "jax": "1"},
        "note": "Loud.",
        "machine": {"processor": "P", "instructions": None, "threads": 1, "cores": 4, "load": None},
        "texts": {"words": "Said."},
    }  # fmt: skip
    some = [row("w", "v", "ms", 1), row("old", "v", "ms", 1)]
    old = about | {"date": "2026-01-31", "rows": some}
    rows = [
        row("w", "dot", "part: ratio", 0.5),
        row("w", "eager", "part: ratio", 1234.6, spread=[1, 2000]),
        row("x", "eager", "part: ratio", None, spread=[1, 2]),
        row("x", "eager", "part: ratio", 3, dtype="bfloat16"),
        row("y", "a|b", "time: s ÷ s", 7),
        row("y", "a|b", "space: s ÷ s", 8),
    ]
    for found in (old, about | {"date": "2026-02-01", "rows": rows}):
        (tmp_path / f"run-{found['date']}.json").write_text(json.dumps(found))
    return measurements


def test_a_table_of_a_quantity(small: ModuleType) -> None:
    assert small.block("run, part: ratio").splitlines() == [
        "*P; 1 thread; float32, bfloat16; JAX 1; 1 February 2026. Not noted: instruction set, "
        "PyTorch, commit. First published in commit abc. Loud.*",
        "",
        "|  | plain PyTorch | PyTorch's dot product |",
        "| --- | ---: | ---: |",
        "| w | 1,235 (1–2,000) | 0.5 |",
        "| x | 1–2 | – |",
        "| x, bfloat16 | 3 | – |",
    ]


def test_a_table_of_a_workload(small: ModuleType) -> None:
    lines = small.block("run, y").splitlines()
    assert lines[2:] == ["|  | time | space |", "| --- | ---: | ---: |", "| a\\|b | 7 | 8 |"]


def test_a_block_has_a_text_and_a_run_by_its_date(small: ModuleType) -> None:
    text = "A\n\n<!-- measurements: run, words -->\nold\n<!-- end -->\n\nB\n"
    assert small.filled(text) == text.replace("old\n", "Said.\n\n")
    assert "31 January 2026" in small.block("run-2026-01-31, w")
    assert "31 January 2026" in small.block("run, old")  # the newest run has none
    assert small.block("run, z, or none") == small.block("no, z, or none") == "Not measured."
    for name, said in (("run, z", "nothing that is called 'z'"), ("no, z", "no file no.json")):
        with pytest.raises(ValueError, match=said):
            small.block(name)
