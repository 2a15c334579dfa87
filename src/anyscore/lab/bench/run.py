"""The benchmark: everything measured, and on disk as soon as it is known."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from anyscore import __version__, plan
from anyscore.lab.bench.parts import PARTS, Settings, Watcher
from anyscore.lab.bench.plot import draw
from anyscore.lab.bench.rivals import RIVALS
from anyscore.lab.bench.table import markdown
from anyscore.lab.bench.work import Work
from anyscore.lab.info import describe_machine
from anyscore.lab.run_folder import write_whole

BENCH_FILE, PLOT_FILE, TABLE_FILE = "bench.json", "bench.png", "bench.md"


def bench(
    settings: Settings, folder: Path, *, watcher: Watcher | None = None, command: str | None = None
) -> dict[str, Any]:
    """Measure; `bench.json` and, at the end, `bench.png` and `bench.md` hold what was found.

    The first Ctrl-C ends it: what was measured by then is written, under "interrupted". A second
    one is not caught.

    Raises:
        RunFailure: when a file cannot be written.
    """
    watcher = watcher or Watcher()
    torch.set_num_threads(settings.threads)
    record = _record(settings) | {"command": command}
    watcher.begins(record)
    try:
        for name in settings.parts:
            watcher.part_begins(name)
            for result in PARTS[name][1](settings, record["results"], watcher):
                watcher.measured(result)
                _write(record, folder)
    except KeyboardInterrupt:
        watcher.interrupted()
        record["interrupted"] = True
    if record["results"]:
        _write(record, folder)
        write_whole(folder / TABLE_FILE, markdown(record).encode())
        write_whole(folder / PLOT_FILE, draw(record))
    return record


def _record(settings: Settings) -> dict[str, Any]:
    shape = settings.shapes[0]
    small = Work(shape._replace(batch=1, queries=2, keys=2), settings.score, dtype=settings.dtype)
    score = small.formula.score(small.weight)
    found = plan(small.query, small.key, small.value, score=score)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {
        "anyscore": __version__,
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": describe_machine("cpu") | {"cores": os.cpu_count(), "load": round(load, 2)},
        "settings": asdict(settings),
        "plan": asdict(found),
        "not_installed": [r.name for r in RIVALS.values() if not r.installed],
        "results": [],
        "interrupted": False,
    }


def _write(record: dict[str, Any], folder: Path) -> None:
    text = json.dumps(record, indent=1, ensure_ascii=False)
    write_whole(folder / BENCH_FILE, text.encode())
