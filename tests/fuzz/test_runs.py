"""A run folder with one damaged file raises one clear sentence, and nothing is written."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from fuzz.fuzzing import Effort
from helpers.damaged_runs import WAYS, Damage, check, damages


def test_damaged_runs(effort: Effort, tmp_path: Path) -> None:
    def opened_or_refused(drawn: tuple[str, Damage]) -> None:
        check(tmp_path, *drawn)

    drawn = st.tuples(st.sampled_from(list(WAYS)), damages(tmp_path))
    effort.spend(opened_or_refused, drawn, examples=24, share=0.1, at_a_time=8)
