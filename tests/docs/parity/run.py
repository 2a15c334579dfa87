"""Measure the cells of one framework, in a process of its own.

`make parity` runs all frameworks, and continues where an earlier run stopped.

export PYTHONPATH=tests:tests/docs
python -m parity.run exact --out exact.npz          (ten minutes; needs PyTorch)
python -m parity.run jax --exact exact.npz --out jax.json

NumPy and PyTorch take three minutes each, TensorFlow and MXNet some more. Each dtype of JAX takes a
quarter of an hour: JAX compiles each operation for each shape and dtype. `--scores`, `--extras` and
`--every` leave out rows, the same for all frameworks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from anyscore.kernels import cpu
from parity import expected
from parity.age import git
from parity.cells import IMPLEMENTATIONS, measure
from parity.frameworks import FRAMEWORKS, Framework
from parity.rows import ROWS, Row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("exact", *FRAMEWORKS))
    parser.add_argument("--exact", type=Path, help="what `exact` wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtypes", nargs="+", help="only these")
    parser.add_argument("--mend", type=Path, help="a result: measure what failed in it anew")
    parser.add_argument("--scores", nargs="+", help="only rows of these scores")
    parser.add_argument("--extras", nargs="+", help="only rows of these extras; '' has none")
    parser.add_argument("--every", type=int, default=1, help="only every n-th row, to try it out")
    given = parser.parse_args()
    rows = [row for row in ROWS if row[0] in (given.scores or row)]
    rows = [row for row in rows if row[3] in (given.extras or row)][:: given.every]
    if given.what == "exact":
        expected.write(given.out, Framework.dtypes, rows)
        return
    if given.exact is None:
        parser.error(f"{given.what} needs --exact")
    f, read = FRAMEWORKS[given.what](), expected.reader(given.exact)
    if given.mend is None:
        dtypes = [x for x in f.dtypes if x in (given.dtypes or f.dtypes)]
        found = results(f, dtypes, rows, read)
    else:
        found = mended(json.loads(given.mend.read_text(encoding="utf-8")), f, read)
    beside = given.out.with_suffix(".part")
    beside.write_text(json.dumps(found), encoding="utf-8")
    os.replace(beside, given.out)


def results(f: Framework, dtypes: Any, rows: list[Row], read: Any) -> dict[str, Any]:
    """Return the page's data of a framework, as plain data."""
    start = time.monotonic()
    cells: list[dict[str, Any]] = []
    for dtype in dtypes:
        for number, row in enumerate(rows, 1):
            for impl in IMPLEMENTATIONS:
                cells.append(asdict(measure(f, row, dtype, impl, read(row, dtype))))
            if number % 100 == 0:
                print(f"{f.name}, {dtype}: {number} of {len(rows)} rows", file=sys.stderr)
    return {
        "framework": f.name,
        "versions": {
            "Python": platform.python_version(),
            "numpy": np.__version__,
            f.versions[0]: f.module.__version__,
            **{name: version(name) for name in ("anyscore", *f.versions[1:])},
        },
        "machine": f"{platform.system()} {platform.machine()}, {cpu.isa()}",
        "date": date.today().isoformat(),
        "commit": git("describe", "--always", "--dirty", "--exclude=*") or None,
        "seconds": round(time.monotonic() - start, 1),
        "cells": cells,
    }


def mended(found: dict[str, Any], f: Framework, read: Any) -> dict[str, Any]:
    """Return a result with the cells outside their budget measured anew."""
    for i, cell in enumerate(found["cells"]):
        if cell["outside"]:
            row, dtype = tuple(cell["row"]), cell["dtype"]
            found["cells"][i] = asdict(measure(f, row, dtype, cell["impl"], read(row, dtype)))
    return found


if __name__ == "__main__":
    main()
