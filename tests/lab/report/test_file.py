"""The file of a report is safe, small, and never half written."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from lxml import html

from anyscore.lab.errors import RunFailure
from anyscore.lab.report.page import report_page
from lab.hostile_comparison import HOSTILE, hostile_comparison
from lab.parsed_report import parsed, words, write_report
from lab.sample_comparison import sample_comparison
from lab.sample_verdict import sample_verdict

STEERING = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
"""Control characters, other line ends, and characters that change the direction of a text."""


@pytest.fixture
def page(tmp_path: Path) -> Callable[[dict[str, Any]], Any]:
    """Return a function that writes and parses the report of a comparison."""
    return lambda comparison: parsed(comparison, tmp_path)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_never_markup(text: str, tmp_path: Path) -> None:
    write_report(hostile_comparison(text), tmp_path / "report.html")
    source = (tmp_path / "report.html").read_bytes().decode("utf-8")
    assert not re.search(STEERING, source)
    found = html.fromstring(source)
    assert len(found.xpath("//script")) == len(found.xpath("//style")) == 1
    assert not found.xpath("//img | //iframe | //object | //embed | //form | //a | //base")
    assert not found.xpath("//@*[starts-with(name(), 'on') or name() = 'style']")
    assert {str(use) for use in found.xpath("//@href")} == {"data:,", "#all-match", "#all-loss"}
    clean = re.sub(STEERING, "\ufffd", text).replace("\ud800", "?")
    assert words(found.xpath("//h1")[0]) == (" ".join(clean.split()) or "Attention scores compared")
    names = [words(b) for b in found.xpath('//bdi[@class="name"]')]
    assert " ".join(clean.split()) in names
    assert not found.xpath("//b[not(bdi) and not(ancestor::table)]"), (
        "a name in a sentence is not set apart"
    )


def test_only_its_own_script_and_style_may_run(page: Any) -> None:
    found = page(sample_comparison())
    (policy,) = found.xpath('//meta[@http-equiv="Content-Security-Policy"]/@content')
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for kind in ("script", "style"):
        (element,) = found.xpath(f"//{kind}")
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not found.xpath("//@src")


def test_a_large_comparison_is_under_three_megabytes(tmp_path: Path) -> None:
    comparison = sample_comparison(seeds=10)
    comparison["scores"] = [f"score_{i}" for i in range(10)]
    trial = comparison["trials"][0]
    epochs = [dict(trial["epochs"][i % 6]) | {"epoch": i + 1} for i in range(100)]
    comparison["trials"] = [
        dict(trial) | {"score": name, "seed": seed, "epochs": epochs}
        for name in comparison["scores"]
        for seed in range(10)
    ]
    side = [[1 / 64] * 64 for _ in range(64)]
    answer = {"output": ["x"] * 64, "weights": side, "right": True}
    example = {"source": ["y"] * 64, "references": ["z"]}
    example["answers"] = dict.fromkeys(comparison["scores"], answer)
    comparison["examples"] = [example] * 8
    comparison["verdict"] = sample_verdict(comparison)
    write_report(comparison, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    write_report(sample_comparison(), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 400_000


def test_the_same_comparison_has_the_same_report_whatever_the_users_style() -> None:
    first = report_page(sample_comparison())
    users = {"svg.fonttype": "path", "font.size": 20, "axes.grid": True, "lines.linewidth": 9}
    with matplotlib.rc_context(users):
        assert report_page(sample_comparison()) == first


def test_an_old_report_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("old")
    write_report(sample_comparison(), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_full_disk_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunFailure, match="the disk is full; free some space"):
        write_report(sample_comparison(), path)
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(RunFailure, match="No such file or directory") as caught:
        write_report(sample_comparison(), tmp_path / "none" / "report.html")
    assert "\n" not in str(caught.value)
