"""Processor seconds of the targets of a test run, beside their budgets.

    python tests/processor_seconds.py begin                     (forget an earlier run)
    python tests/processor_seconds.py run contract pytest …     (run a command, note its seconds)
    python tests/processor_seconds.py table test                (or test-daily: print its targets)

Seconds depend on the machine. The pace of a run is the median over the targets of seconds ÷ budget,
and a budget is multiplied by it. A target far over its budget has grown beside the others. The
table marks it, and nothing fails. A change that raises a budget says so.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

FOLDER = Path("build/seconds")
FAR = 1.5  # times the budget
# Seconds in `make test` and `make test-daily` on two cores of an AMD EPYC (Zen 3).
BUDGETS = {
    "install": (195, 220), "contract": (380, 490), "lab": (240, 480), "torch": (135, 405),
    "tables": (140, 0), "types": (65, 65), "compare": (8, 8), "lint": (4, 4),
    "jax": (0, 210), "pallas": (0, 205), "triton-torch": (0, 60), "triton": (0, 410),
    "page-examples": (0, 120), "mxnet": (0, 60), "install-mxnet": (0, 105), "isas": (0, 105),
    "tensorflow": (0, 95), "keras-tensorflow": (0, 80), "keras-jax": (0, 65),
    "keras-torch": (0, 25), "torch-exports": (0, 85), "ray": (0, 20), "triton-oldest": (0, 5),
    "play": (0, 15), "docs": (0, 30), "site": (0, 45),
}  # fmt: skip
RUNS = "test", "test-daily"


def run(target: str, command: list[str]) -> int:
    """Run a command; add the processor seconds of the command and its processes to the target's."""
    begun = time.monotonic()
    status = subprocess.run(command).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = {"processor": used.ru_utime + used.ru_stime, "wall": time.monotonic() - begun}
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / f"{target}.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    return status


def table(of: str) -> str:
    """Return rows of (target, processor seconds, budget at the pace of the run, mark)."""
    seconds = {
        path.stem: sum(json.loads(row)["processor"] for row in path.read_text("utf-8").splitlines())
        for path in sorted(FOLDER.glob("*.jsonl"))
    }
    budgets = {target: BUDGETS.get(target, (0, 0))[RUNS.index(of)] for target in seconds}
    pace = median([seconds[x] / budget for x, budget in budgets.items() if budget] or [1.0])
    lines = [f"{'target':18} {'processor s':>11} {'budget':>6}"]
    for target, used in seconds.items():
        budget = pace * budgets[target]
        mark = "  far over its budget" if used > FAR * budget else ""
        lines.append(f"{target:18} {used:11.0f} {budget:6.0f}{mark}")
    total = sum(seconds.values()), pace * sum(budgets.values())
    lines.append(f"{'together':18} {total[0]:11.0f} {total[1]:6.0f}, at a pace of {pace:.2f}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the subcommand; return the status of a command that was run."""
    match arguments:
        case ["begin"]:
            shutil.rmtree(FOLDER, ignore_errors=True)
        case ["run", target, *command] if command:
            return run(target, command)
        case ["table", ("test" | "test-daily") as of]:
            print(table(of))
        case _:
            sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
