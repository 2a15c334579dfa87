"""The page of proofs in Markdown: the paper's words and our numbers side by side."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyscore.lab.errors import RunFailure
from anyscore.lab.phrases import counted
from anyscore.lab.prove.text import (
    SIGNS,
    bound,
    interval,
    machine,
    minutes,
    number,
    rows,
    summary,
)
from anyscore.lab.run_folder import write_whole


def write_page(record: Mapping[str, Any], out: Path, path: Path) -> None:
    """Write the page, and beside it the pictures in `out` that it shows.

    Raises:
        RunFailure: a file cannot be written.
    """
    write_whole(path, render(record, path.stem).encode())
    for result in record["proofs"]:
        if result["picture"]:
            source = out / result["picture"]["file"]
            try:
                shutil.copyfile(source, path.parent / _beside(path.stem, source.name))
            except OSError as error:
                raise RunFailure(
                    f"{path.parent}: cannot be written ({error.strerror or error})"
                ) from None


def render(record: Mapping[str, Any], stem: str = "proof") -> str:
    """Return the page's text.

    Args:
        record: of the proofs.
        stem: name of the page's file, after which its pictures are named.
    """
    lines = [
        "# Published findings, tried on one machine",
        "",
        "A generated page: `anyscore prove --page docs/proof.md`. Each claim is tried with a task "
        f"that is generated or comes in a package, with {counted(record['seeds'], 'seed')}; a "
        "check holds or fails by an interval over seeds and test items ([how](verdict.md)), so "
        "made that all intervals of a proof hold together with 95 %. What does not come out as "
        "published is shown as such.",
        "",
        f"Machine: {machine(record)}.",
        "",
        "|proof|claim of|outcome|processor minutes|",
        "|---|---|---|---:|",
    ]
    for result in record["proofs"]:
        lines.append(
            f"|[{result['name']}](#{_anchor(result['title'])})|{result['paper']}|"
            f"{summary(result)}|{minutes(result)}|"
        )
    for result in record["proofs"]:
        lines += _proof(result, stem)
    return "\n".join(lines) + "\n"


def _proof(result: Mapping[str, Any], stem: str) -> list[str]:
    """Return the lines of a proof."""
    lines = ["", f"## {result['title']}", "", f"{result['source']}:", "", f"> {result['words']}"]
    lines += ["", f"**Here: {summary(result)}.**", "", result["task"], "", result["ours"]]
    if result["picture"]:
        name = _beside(stem, os.path.basename(result["picture"]["file"]))
        lines += ["", f"![{result['picture']['shows']}]({name})", "", result["picture"]["shows"]]
    lines += ["", f"|claim|bound|ours|interval ({100 * result['level']:.4g} %)||"]
    lines += ["|---|---:|---:|---:|---|"]
    for check in result["checks"]:
        lines.append(
            f"|{check['says']}|{bound(check)}|{number(check['mean'])}|{interval(check)}|"
            f"{SIGNS[check['state']]} {check['state']}|"
        )
    for part in result["parts"]:
        lines += _part(part, several=len(result["parts"]) > 1)
    return lines


def _part(part: Mapping[str, Any], several: bool) -> list[str]:
    """Return the lines of a part."""
    published = any(part["published"])
    heads = [f"{measure['title']} (95 %)" for measure in part["measures"]]
    lines = ["", f"### {part['name']}"] if several else []
    lines += ["", "|".join(["", "score", *(["published"] if published else []), *heads, ""])]
    lines += ["|---|" + "---:|" * (published + len(heads))]
    for score, said, standings in rows(part):
        cells = [score, *([said or ""] if published else [])]
        cells += [f"{number(s['mean'])} ({interval(s)})" if s else "—" for s in standings]
        lines.append(f"|{'|'.join(cells)}|")
    for name, why in part["failures"].items():
        lines += ["", f"{name} failed: {why}."]
    return lines


def _anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def _beside(stem: str, name: str) -> str:
    """Return the name of a picture beside the page."""
    return f"{stem}_{name}"
