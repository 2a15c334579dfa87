"""The report as a file: complete, safe, and never half written. The browser test looks at it."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from sample_metrics import sample_metrics

from anyscore.lab import report
from anyscore.lab.files import RunFailure
from anyscore.lab.report import write_report
from anyscore.lab.tokens import GLUE


def written(metrics: dict[str, Any], folder: Path) -> str:
    path = folder / "report.html"
    write_report(metrics, path)
    return path.read_text(encoding="utf-8")


def data(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def body(html: str) -> str:
    """The page without its scripts and style."""
    return re.sub(r"<(script|style).*?</\1>", "", html, flags=re.DOTALL)


def rows(html: str) -> list[list[str]]:
    """The table's cells as plain text."""
    table = re.search(r"<tbody>(.*?)</tbody>", html, re.DOTALL)
    assert table is not None
    return [
        [
            re.sub(r"<[^>]*>", "", cell).strip()
            for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)
        ]
        for row in table[1].split("<tr>")[1:]
    ]


def test_table_is_sorted_by_quality(tmp_path: Path) -> None:
    html = body(written(sample_metrics(), tmp_path))
    names = re.findall(r'<span class="name">(\w+)', html)
    assert names == ["additive", "gatv2", "bilinear", "gaussian", "scaled_dot"]
    assert rows(html)[0] == ["96.2", "98.3", "94.6", "7.4", "39.8", "118.4", "364,303", "32,896"]
    assert "<strong>96.2</strong>" in html
    assert "<strong>95.2</strong>" not in html
    assert "W<sub>k</sub> k" in html
    assert "leaky_relu" in html


def test_what_was_not_measured_is_a_dash(tmp_path: Path) -> None:
    assert {row[-3] for row in rows(body(written(sample_metrics("sentences"), tmp_path)))} == {"—"}


def test_training_needed_is_a_column(tmp_path: Path) -> None:
    metrics = sample_metrics()
    html = body(written(metrics, tmp_path))
    assert "Training<small>s to 90 %</small>" in html
    assert "<strong>5.9</strong>" in html
    assert [row[3] for row in rows(html)] == ["7.4", "7.6", "5.9", "never", "never"]
    for score in metrics["scores"]:
        score["step_ms"] = None
    html = body(written(metrics, tmp_path))
    assert "Training<small>epochs to 90 %</small>" in html
    assert "Training<small>" not in body(written(sample_metrics("sentences"), tmp_path))


def test_a_failed_score_says_why(tmp_path: Path) -> None:
    metrics = sample_metrics()
    metrics["scores"][0] |= {"test": None, "failure": "the loss became nan"}
    html = body(written(metrics, tmp_path))
    assert "scaled_dot <em>failed</em>" in html
    assert "Training failed with <b>scaled_dot</b>: the loss became nan." in html


def test_summary_stands_in_the_page(tmp_path: Path) -> None:
    html = body(written(sample_metrics(), tmp_path))
    assert "<b>additive</b> did best on the 500 test items with 96.2\u00a0% exact match" in html
    assert '<li class="advice">Recommendation: take <b>gatv2</b>' in html


def test_interrupted_run(tmp_path: Path) -> None:
    assert "Interrupted." not in body(written(sample_metrics(), tmp_path))
    metrics = sample_metrics()
    metrics["interrupted"] = True
    metrics["scores"][2] |= {"test": None, "finished": False, "examples": []}
    metrics["scores"][2] |= {"step_ms": None, "epochs": metrics["scores"][2]["epochs"][:2]}
    metrics["scores"][1] |= metrics["scores"][2] | {"name": "bilinear", "parameters": 0}
    html = body(written(metrics, tmp_path))
    assert "Interrupted." in html
    assert ["—"] * 4 in [row[3:5] + row[6:] for row in rows(html)]  # never begun
    assert "<strong>331,407</strong>" in html
    assert "additive <em>not finished</em>" in html
    assert rows(html)[-1][:4] == ["—"] * 4
    assert "3 of 3 right" in html


def test_nothing_finished(tmp_path: Path) -> None:
    metrics = sample_metrics()
    metrics["interrupted"] = True
    metrics["scores"] = []
    html = body(written(metrics, tmp_path))
    assert "nothing can be recommended" in html
    assert 'id="match"' not in html
    assert 'id="item"' not in html


def test_tokens_are_text_not_markup(tmp_path: Path) -> None:
    metrics = sample_metrics("sentences")
    hostile = "</script><script>alert(1)</script><!--"
    metrics["task"]["description"] = hostile
    for score in metrics["scores"]:
        score["examples"][3]["source"][0] = hostile
        score["examples"][3]["references"] = [hostile]
        score["formula"] = hostile
    html = written(metrics, tmp_path)
    assert "alert(1)</script>" not in html
    assert data(html)["sources"][3][0] == [hostile, hostile]
    assert "&lt;/script&gt;" in body(html)


def test_the_page_may_not_use_the_network(tmp_path: Path) -> None:
    html = written(sample_metrics(), tmp_path)
    assert "default-src 'none'; script-src 'unsafe-inline'" in html
    assert not re.search(r"""(?:src|href)=["']?(?!["#'])(?!data:,)""", body(html))
    assert html.count("plotly.js v") == 1


def test_data_of_the_plots(tmp_path: Path) -> None:
    metrics = sample_metrics()
    metrics["scores"][0]["epochs"][1]["valid_loss"] = float("nan")
    metrics["scores"][0]["examples"][0]["weights"][0][0] = float("inf")
    shown = data(written(metrics, tmp_path))
    assert shown["order"][0] == "additive"
    first = shown["scores"][0]
    assert first["epochs"][1]["valid_loss"] is None
    assert first["examples"][0]["weights"][0][0] is None
    assert first["examples"][0]["weights"][1][2] == pytest.approx(
        metrics["scores"][0]["examples"][0]["weights"][1][2], abs=1e-6
    )
    assert [token for token, _ in first["examples"][0]["output"]] == [*"2024-03-30", "⏎"]
    assert [score["examples"][3]["right"] for score in shown["scores"]] == [False] + [True] * 4
    assert shown["scores"][0]["quality"] == 0.878


@pytest.mark.parametrize(
    ("token", "unit", "label"),
    [
        ("a", "character", ["a", "a"]),
        (" ", "character", ["␣", "space"]),
        ("\u202f", "character", ["␣", "narrow no-break space"]),
        ("\u200f", "character", ["RLM", "right-to-left mark"]),
        ("\x07", "character", ["U+0007", "u+0007"]),
        ("\u093c", "character", ["◌\u093c", "◌\u093c"]),
        ("</s>", "word", ["⏎", "end of output"]),
        (GLUE + "hiver", "word", ["hiver", "hiver"]),
    ],
)
def test_labels_can_be_seen(token: str, unit: str, label: list[str]) -> None:
    assert report._label(token, unit) == label


def test_right_and_wrong() -> None:
    def right(output: list[str], *references: str) -> bool:
        return report._right({"output": output, "references": references}, "word")

    assert right(["n'", GLUE + "est", "</s>"], "n'est")
    assert right(["oui"], "non", " oui ")
    assert not right(["oui"], "ou")


def test_command(tmp_path: Path) -> None:
    metrics = sample_metrics()
    rest = "--scores scaled_dot,bilinear,additive,gaussian,gatv2 --seed 0 --epochs 6"
    html = body(written(metrics, tmp_path))
    assert f"<code>anyscore compare {rest} --batch-size 64 --hidden 128</code>" in html
    metrics["task"]["name"] = "my pairs.tsv"
    assert "anyscore compare &#39;my pairs.tsv&#39; --scores" in body(written(metrics, tmp_path))


def test_command_as_typed(tmp_path: Path) -> None:
    metrics = sample_metrics() | {"command": "anyscore compare --device cpu"}
    html = body(written(metrics, tmp_path))
    assert "<code>anyscore compare --device cpu</code>" in html


def test_an_old_report_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("old")
    assert "<!DOCTYPE html>" in written(sample_metrics(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_full_disk_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunFailure, match="the disk is full; free some space"):
        write_report(sample_metrics(), path)
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(RunFailure, match="No such file or directory") as caught:
        write_report(sample_metrics(), tmp_path / "none" / "report.html")
    assert "\n" not in str(caught.value)
