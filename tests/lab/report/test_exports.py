"""Other programs read the exported tables and pictures of a comparison."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab.errors import RunFailure
from anyscore.lab.report import exports
from anyscore.lab.report.exports import escape_latex, export, to_csv
from lab.hostile_comparison import HOSTILE, hostile_comparison
from lab.sample_comparison import sample_comparison
from lab.sample_verdict import sample_verdict

NAMES = [
    "comparison.json",
    "curves.png",
    "differences.csv",
    "differences.tex",
    "epochs.csv",
    "forest.png",
    "scores.csv",
    "scores.tex",
    "trials.csv",
]


def read(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the exports of the sample; no test writes to the folder."""
    folder = tmp_path_factory.mktemp("exported")
    export(sample_comparison(), folder)
    return folder


def test_every_file_is_written(tmp_path: Path) -> None:
    found = export(sample_comparison(), tmp_path / "new" / "folder")
    assert sorted(path.name for path in found) == NAMES
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == NAMES


def test_json_is_the_comparison(exported: Path) -> None:
    text = (exported / "comparison.json").read_text(encoding="utf-8")
    assert json.loads(text) == sample_comparison()


def test_tables_as_csv(exported: Path) -> None:
    comparison = sample_comparison()
    scores = read(exported / "scores.csv")
    for row, standing in zip(scores, comparison["verdict"]["standings"], strict=True):
        assert row["score"] == standing["score"]
        assert float(row["exact match"]) == pytest.approx(standing["mean"], rel=1e-5)
        assert row["seeds"] == "5"
    assert [row["of the score"] for row in scores] == ["32896", "32896", "1", "16384", "0"]
    pairs = read(exported / "differences.csv")
    for row, pair in zip(pairs, comparison["verdict"]["differences"], strict=True):
        assert (row["better"], row["worse"]) == (pair["better"], pair["worse"])
        assert float(row["p after Holm"]) == pytest.approx(pair["holm"], rel=1e-5)
    trials = read(exported / "trials.csv")
    assert len(trials) == 25
    assert trials[0]["learning_rate"] == "0.004"
    assert len(read(exported / "epochs.csv")) == 150


def test_csv_opens_in_spreadsheets(tmp_path: Path) -> None:
    comparison = hostile_comparison('=HYPERLINK("http://example.invalid")')
    comparison["trials"][-1]["failure"] = 'größer, "and" a line\nmore'
    export(comparison, tmp_path)
    assert (tmp_path / "trials.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    last = read(tmp_path / "trials.csv")[-1]
    assert last["score"] == '\'=HYPERLINK("http://example.invalid")'
    assert last["failure"] == 'größer, "and" a line\nmore'
    assert read(tmp_path / "differences.csv")[0]["low"]  # numbers stay numbers: −0.3 is "-0.3"
    assert any(row["low"].startswith("-") for row in read(tmp_path / "differences.csv"))


def test_tables_as_latex(exported: Path) -> None:
    lines = (exported / "scores.tex").read_text().splitlines()
    assert lines[1:3] == [r"\begin{tabular}{lrrrrrrrrrrrr}", r"\toprule"]
    assert lines[5].startswith("additive & $96.3$ & $95.6$ & $97.0$ & 5 & $98.4$ &")
    assert lines[9].startswith(r"scaled\_dot & $87.6$")
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    pairs = (exported / "differences.tex").read_text()
    assert r"additive & gatv2 & $0.570$ & $-0.316$" in pairs
    assert r"\cdot 10^{-4}$" in pairs


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b & 100% #1 $x$", r"a\_b \& 100\% \#1 \$x\$"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("~^<>|", r"\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}\textbar{}"),
        ('[1]--"q"', "{[}1{]}{-}{-}''q''"),
        ("größe café", "große cafe".replace("ß", "U+00DF")),
        ("中\u202e", "U+4E2DU+202E"),
        ("a\x00\x1b b\n c", "a b c"),
    ],
)
def test_latex_is_escaped(text: str, escaped: str) -> None:
    assert escape_latex(text) == escaped


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names(text: str, tmp_path: Path) -> None:
    comparison = hostile_comparison(text)
    latex = exports.to_latex(exports.score_table(comparison)).decode("ascii")
    commands = set(re.findall(r"(?<!\\)(?:\\\\)*\\([a-zA-Z]+)", latex))
    assert commands <= {
        "usepackage", "begin", "end", "toprule", "midrule", "bottomrule", "cdot", "textbackslash",
        "textasciitilde", "textasciicircum", "textless", "textgreater", "textbar",
    }  # fmt: skip
    bare = re.sub(r"\\[&%$#_{}\\]", "", latex)
    assert bare.count("{") == bare.count("}")
    columns = len(exports.score_table(comparison)[0])
    body = [line for line in bare.split("\n") if " & " in line]
    assert len(body) == 1 + len(comparison["scores"])
    assert {line.count("&") for line in body} == {columns - 1}
    (tmp_path / "trials.csv").write_bytes(exports.to_csv(exports.trial_table(comparison)))
    assert len(read(tmp_path / "trials.csv")) == len(comparison["trials"])


@pytest.mark.parametrize("number", [10, 12, 13, 14, 17])
def test_hostile_names_are_drawn(number: int, tmp_path: Path) -> None:
    """Names with control characters, other scripts, half a character or formulas are drawn."""
    assert len(export(hostile_comparison(HOSTILE[number]), tmp_path)) == len(NAMES)


def test_where_there_is_nothing_to_draw(tmp_path: Path) -> None:
    comparison: dict[str, Any] = sample_comparison(seeds=1)
    comparison |= {"trials": [], "examples": [], "step_ms": {}}
    comparison["verdict"] = sample_verdict(comparison)
    export(comparison, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [n for n in NAMES if ".png" not in n]
    assert [row["exact match"] for row in read(tmp_path / "scores.csv")] == [""] * 5


def test_one_seed_has_no_p(tmp_path: Path) -> None:
    export(sample_comparison(seeds=1), tmp_path)
    assert {row["p after Holm"] for row in read(tmp_path / "differences.csv")} == {""}
    assert " & -- & -- & " in (tmp_path / "differences.tex").read_text()


@pytest.mark.parametrize("first", "=+-@\t\r\n＝＋－＠﹢﹣﹦﹫")
def test_a_text_is_no_formula_for_a_spreadsheet(first: str) -> None:
    text = to_csv((["a"], [[f"{first}1+1"]])).decode("utf-8-sig")
    _, row = csv.reader(io.StringIO(text, newline=""))
    assert row == [f"'{first}1+1"]


@pytest.mark.parametrize("text", ["1+1", "加", "a=b", "’", "−1", "é"])
def test_a_text_that_is_no_formula_stays(text: str) -> None:
    assert to_csv((["a"], [[text]])).decode("utf-8-sig") == f"a\r\n{text}\r\n"


def test_pictures_are_pictures(exported: Path) -> None:
    from matplotlib.image import imread

    for name in ("forest.png", "curves.png"):
        pixels = imread(exported / name)
        assert pixels.shape[0] > 500
        assert pixels.shape[1] > 1000
        accent = abs(pixels[..., :3] - [11 / 255, 92 / 255, 171 / 255]).max(axis=-1) < 0.02
        assert 0.0005 < accent.mean() < 0.2  # marks and lines are there


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailure, match="cannot be made") as caught:
        export(sample_comparison(), tmp_path / "file")
    assert "\n" not in str(caught.value)
