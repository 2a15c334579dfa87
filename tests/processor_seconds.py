"""Processor seconds of the targets of a test run, beside what each may take.

    python tests/processor_seconds.py begin                     (forget an earlier run)
    python tests/processor_seconds.py run contract pytest …     (run a command, note what it took)
    python tests/processor_seconds.py table                     (print what each target took)

A target that outgrew its budget is marked, and nothing fails: these seconds depend on the machine.
Whoever adds tests sees what they cost; whoever raises a budget says so in the same change.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path("build/seconds")
# On two quiet cores of an AMD EPYC of Zen 5. One of Zen 3 takes 2.3 times as long.
BUDGETS = {}  # type: ignore[var-annotated]


def run(target: str, command: list[str]) -> int:
    """Run a command; add its processor seconds, with those of its processes, to the target's."""
    begun = time.monotonic()
    status = subprocess.run(command).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = {"processor": used.ru_utime + used.ru_stime, "wall": time.monotonic() - begun}
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / f"{target}.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    return status


def table() -> str:
    """Return the rows: target, processor seconds, budget, and what is over it."""
    lines = [f"{'target':18} {'processor s':>11} {'budget':>6}"]
    total = allowed = 0.0
    for path in sorted(FOLDER.glob("*.jsonl")):
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        seconds, budget = sum(row["processor"] for row in rows), BUDGETS.get(path.stem, 0)
        mark = "  over its budget" if seconds > budget else ""
        lines.append(f"{path.stem:18} {seconds:11.0f} {budget:6.0f}{mark}")
        total, allowed = total + seconds, allowed + budget
    lines.append(f"{'together':18} {total:11.0f} {allowed:6.0f}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Do what the first argument says; return the status of a command that was run."""
    match arguments:
        case ["begin"]:
            shutil.rmtree(FOLDER, ignore_errors=True)
        case ["run", target, *command] if command:
            return run(target, command)
        case ["table"]:
            print(table())
        case _:
            sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
