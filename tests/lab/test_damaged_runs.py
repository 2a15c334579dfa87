"""A run folder with one damage is refused in one sentence, or opened; nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from helpers.damaged_runs import RAW, WAYS, Damage, check, damages

FILES = ["settings", "about", "trials/dot-seed1/trial", "trials/dot-seed1/items"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_whole_is_opened(place: Path, way: str) -> None:
    check(place, way, Damage("trials/dot-seed0/model.json", "cut"))


@pytest.mark.parametrize(
    "file", ["settings", "about", "trials/dot-seed1/trial", "trials/dot-seed1/items"]
)
@pytest.mark.parametrize("way", ["report", "merge"])
def test_no_file_is_too_deep_or_waited_for(place: Path, way: str, file: str) -> None:
    for damage in (Damage(f"{file}.json", "value", (), RAW[-1]), Damage(f"{file}.json", "pipe")):
        assert not check(place, way, damage)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "export"])
def test_any_damage_is_one_sentence(place: Path, way: str) -> None:
    """One damage gives at most one sentence; `tests/fuzz` draws more, and exports too."""

    @settings(max_examples=15, suppress_health_check=list(HealthCheck))
    @given(damages(place))
    def one(damage: Damage) -> None:
        check(place, way, damage)

    one()
