"""A link in a run folder from elsewhere leads to no file that is read, written or removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab import compare
from anyscore.lab.comparison import Comparison
from anyscore.lab.errors import InputError
from anyscore.lab.merging import merge
from anyscore.lab.session import rebuild
from anyscore.lab.train.checkpoint import load_run
from anyscore.lab.translate.trials import find_trial
from anyscore.lab.tuning import search_results
from lab.command_line import call, check_refused

PLACES = [
    "lock",
    "settings.json",
    "about.json",
    "trials",
    "trials/even-seed0",
    "trials/even-seed0/trial.json",
    "trials/even-seed0/items.json",
]


def train(score: str, seed: int, report: Any) -> list[float]:
    if seed:
        raise ValueError("no luck")
    return [1.0, 0.0]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with pytest.warns(UserWarning, match="1 trial failed"):
        compare(train, ["even"], seeds=2, out=tmp_path / "run")
    return tmp_path / "run"


def lead_out(run: Path, place: str) -> Path:
    """Move a file or folder elsewhere, and leave a link to it; return the new parent folder."""
    elsewhere = run.parent / "elsewhere" / Path(place).name
    elsewhere.parent.mkdir()
    shutil.move(run / place, elsewhere)
    (run / place).symlink_to(elsewhere)
    if elsewhere.is_dir():
        for name in (".ssh", ".a-seed0.12ab"):
            (elsewhere / name).mkdir()
            (elsewhere / name / "id").write_text("key")
    return elsewhere.parent


def content(folder: Path) -> dict[Path, bytes | None]:
    return {x: x.read_bytes() if x.is_file() else None for x in folder.rglob("*")}


def again(run: Path) -> Any:
    return compare(lambda *_: [1.0, 0.0], ["even", "odd"], seeds=2, out=run)


def merged(run: Path) -> Any:
    return merge([run, run], run.parent / "merged")


# Merging reads a run without its lock.
WAYS = [(way, place) for way in (rebuild, again, merged) for place in PLACES[way is merged :]]


@pytest.mark.parametrize(("open_", "place"), WAYS)
def test_a_link_in_the_place_of_a_part_is_refused(
    run: Path, place: str, open_: Callable[[Path], Any]
) -> None:
    elsewhere = lead_out(run, place)
    before = content(elsewhere)
    with pytest.raises(InputError, match="found a link; replace it") as refusal:
        open_(run)
    assert str(run / place) in str(refusal.value)
    assert content(elsewhere) == before
    assert not (run.parent / "merged").exists()


@pytest.mark.parametrize("place", ["failures", "failures/even-seed1.txt"])
def test_reasons_are_neither_read_nor_written_elsewhere(run: Path, place: str) -> None:
    elsewhere = lead_out(run, place)
    before = content(elsewhere)
    with pytest.raises(InputError, match="found a link; replace it"):
        compare(train, ["even"], seeds=2, out=run)
    assert content(elsewhere) == before


@pytest.mark.parametrize("place", ["tuning", "tuning/trials"])
def test_searches_are_not_read_elsewhere(run: Path, place: str) -> None:
    shutil.copytree(run, run / "tuning")
    lead_out(run, place)
    with pytest.raises(InputError, match="found a link; replace it"):
        search_results(run)


@pytest.mark.parametrize("place", ["trials", "trials/even-seed0", "model.json"])
def test_models_are_not_read_elsewhere(run: Path, place: str) -> None:
    trial = run / "trials" / "even-seed0"
    for name in ("model.json", "model.safetensors"):
        (trial / name).write_text("{}")
    lead_out(run, place if place.startswith("trials") else f"trials/even-seed0/{place}")
    with pytest.raises(InputError, match="found a link; replace it"):
        load_run(find_trial(run, "even", 0))


@pytest.mark.parametrize("kind", ["link", "folder", "deep", "within", "pipe"])
def test_what_is_no_file_is_not_merged(run: Path, kind: str) -> None:
    """Merging refuses links and pipes: a merged run with this machine's files may be published."""
    secret = run.parent / "home"
    secret.mkdir()
    (secret / "key").write_text("secret")
    place = run / "trials" / "even-seed0" / ("model/notes" if kind == "deep" else "notes")
    place.parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        leads_to = {"folder": secret, "within": Path("trial.json")}
        place.symlink_to(leads_to.get(kind, secret / "key"))
    with pytest.raises(InputError, match="notes: expected a file or a folder, found") as refusal:
        merged(run)
    assert str(place) in str(refusal.value)
    assert not (run.parent / "merged").exists()


def test_the_folder_itself_may_be_reached_by_a_link(run: Path) -> None:
    link = run.parent / "latest"
    link.symlink_to(run, target_is_directory=True)
    assert rebuild(link) == rebuild(run)


def test_a_link_to_itself_is_a_link(run: Path) -> None:
    shutil.rmtree(run / "trials")
    (run / "trials").symlink_to("trials")
    check_refused(call("report", run), "found a link; replace it")


def test_only_what_the_laboratory_left_half_written_is_removed(run: Path) -> None:
    others = [".ssh", ".cache", ".a-seed0", ".notes.txt", ".git"]
    left = [".even-seed3.0f", f".a%2Fb-seed3-rate0.002.{'0' * 32}", ".even (wide)-seed12.4711"]
    for name in (*others, *left):
        (run / "trials" / name).mkdir()
    rebuild(run)
    assert {x.name for x in (run / "trials").glob(".*")} == set(others)
    assert Comparison(run).names() == {"even-seed0"}
