"""Any call works in any way, as the first one of a process and beside others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from hypothesis import strategies as st

from fuzz.fuzzing import Effort
from helpers import hang

FOLDER = Path(__file__).parents[1] / "frameworks/torch"


def test_first_calls(effort: Effort) -> None:
    """Sequences of first calls have no error. `make test-all` runs the table's calls one by one."""
    from frameworks.torch import first_calls as table

    calls = ("attention", *table.CALLS, *table.REFUSED)
    cases = [
        f"{call}: {way}"
        for call in dict.fromkeys(calls)
        for way in table.WAYS
        if way not in table.REFUSED.get(call, ())
    ]

    def check(some: list[list[str]]) -> None:
        command = [sys.executable, str(FOLDER / "first_calls.py"), *map("; ".join, some)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=hang.HANG)
        assert ran.returncode == 0, ran.stderr
        wrong = {case: why for case, why in json.loads(ran.stdout).items() if why}
        assert not wrong, "\n\n".join(f"{case}\n{why}" for case, why in wrong.items())

    several = st.lists(st.sampled_from(cases), min_size=1, max_size=3, unique=True)
    drawn = st.lists(several, min_size=4, max_size=4, unique_by="; ".join)
    effort.spend(check, drawn, examples=1, share=0.1, at_a_time=2)
