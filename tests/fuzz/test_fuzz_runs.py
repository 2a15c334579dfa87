"""Run folders of the laboratory with one thing damaged: one clear sentence, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing import Effort
from hypothesis import strategies as st

from damaged_runs import WAYS, check, damages

pytestmark = pytest.mark.slow


def test_damaged_runs(effort: Effort, tmp_path: Path) -> None:
    drawn = st.tuples(st.sampled_from(list(WAYS)), damages(tmp_path))
    effort.spend(lambda one: check(tmp_path, *one), drawn, examples=60, share=0.1)
