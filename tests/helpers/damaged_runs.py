"""Run folders of the laboratory: whole, or with one damaged value, file or folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from anyscore.lab.built_in import MEASURES
from anyscore.lab.comparison import Comparison
from anyscore.lab.console import PlainConsole
from anyscore.lab.errors import InputError
from anyscore.lab.merging import merge
from anyscore.lab.report import exports
from anyscore.lab.rounds import Plan
from anyscore.lab.session import Execution, compare, rebuild, write_about
from anyscore.lab.terminal import show_outcome
from anyscore.lab.train.metrics import statistics
from anyscore.lab.translate.trials import find_trial
from anyscore.lab.trials import Outcome, Report, Trial
from anyscore.lab.tuning import SEED, TUNING
from helpers.hang import HANG

SCORES = ("dot", "additive")
SHARED = {
    "task": {"name": "made", "unit": "word", "test": 4, "pairs_checksum": "ab12",
             "summary": {"lengths": {"source": [1, 2]}}},
    "settings": {"model": "recurrent", "learning_rate": 0.004, "epochs": 2},
}  # fmt: skip
ABOUT = {
    "anyscore": "0.1.0", "created": "2024-03-30T12:00:00+00:00", "command": "anyscore compare",
    "machine": {"processor": "a", "threads": 2}, "formulas": {"dot": "q·k"},
    "step_ms": {score: {"median": 2.0, "low": 1.9, "high": 2.1} for score in SCORES},
    "measures": [vars(measure) for measure in MEASURES],
}  # fmt: skip
TRIALS = [Trial(score, seed) for score in SCORES for seed in range(2)] + [Trial("dot", 0, 0.008)]


def train(trial: Trial, report: Report) -> Outcome:
    """Return the outcome of a trial in the laboratory's format, without training."""
    if trial.seed > 1:
        raise ValueError("no luck")
    outputs = ["a b", "c", "d e f", "" if trial.score == "dot" else "g h"]
    references = ["a b", "c d", "d e f", "g h"]
    right = [float(x == y) for x, y in zip(outputs, references, strict=True)]
    example = {"source": ["a", "b"], "references": ["a b"], "output": ["a", "b", "</s>"],
               "weights": [[0.5, 0.5], [1.0, 0.0], [0.1, 0.9]], "right": True}  # fmt: skip
    epochs = [
        {"epoch": n, "steps": 10 * n, "train_loss": 1 / n, "valid_loss": 1.5 / n,
         "valid_exact_match": 0.5, "seconds": 0.1} for n in (1, 2)
    ]  # fmt: skip
    facts = {"best_epoch": 2, "parameters": 700, "score_parameters": 7, "peak_memory_mib": 1.5,
             "related": 60.0, "unrelated": 10.0, "examples": [example]}  # fmt: skip
    rows = statistics(outputs, [[x] for x in references], characters=False)
    return Outcome({"exact_match": right}, dict(rows), outputs, epochs, facts, _save)


def _save(folder: Path) -> None:
    (folder / "model.json").write_text("{}")


def make(folder: Path) -> None:
    """Make a whole run, with trials at another learning rate, searches, and a failed trial."""
    tried = {"learning_rate": 0.004, "hidden": 8, "valid_loss": 0.5, "state": "complete"}
    found = {"chosen": {"learning_rate": 0.004, "hidden": 8}, "tried": [tried | {"failure": None}]}
    searches = Comparison(folder / TUNING)
    with searches.opened(SHARED):
        for score in SCORES:
            searches.keep(Trial(score, SEED), Outcome({"valid_loss": [-0.5]}, facts=found))
    (folder / "lock").touch()
    shutil.copy(folder / TUNING / "settings.json", folder)
    write_about(Comparison(folder), ABOUT)
    go_on(folder)


def go_on(folder: Path) -> Any:
    """Compare as `anyscore compare` does; a second call continues the run."""
    return compare(
        train,
        Plan(SCORES, 2, extra=(Trial("dot", 0, 0.008), Trial("dot", 9))),
        folder,
        shared=SHARED,
        measures=MEASURES,
        execution=Execution(here=True),
    )


@cache
def _whole(place: str) -> Path:
    folder = Path(place) / "whole"
    make(folder)
    return folder


RAW = [
    "null", "true", "-1", "0", "2", "0.5", "1e400", "-1e308", "1e99", "1e-320", "9" * 400, "NaN",
    "-Infinity", '""', '"x"', '"dot"', '"\\ud800"', '"\\u001b]0;a\\u0007"', '"[/]"', '"\\n"',
    '"' + "a" * 300 + '"', "[]", "{}", "[[]]", "[1]", '["x"]', '{"a": 1}', "[[1, 2], [3]]",
    *("[" * n + "]" * n for n in (20, 40, 900, 100_000)),
]  # fmt: skip
"""JSON that replaces any value."""
PLACES = ("gone", "link", "dangling", "loop", "pipe", "file", "folder")


@dataclass(frozen=True)
class Damage:
    """One fault of a run.

    Attributes:
        path: path of a file or folder in the run.
        kind: "value" or "key" of its JSON, "cut" or "byte" of its content, or one of `PLACES`.
        where: keys that lead to the value.
        what: new JSON of the value, or the damaged fraction of the content.
    """

    path: str
    kind: str
    where: tuple[str | int, ...] = ()
    what: str | float = 0.0

    def do(self, run: Path) -> None:
        """Damage a run."""
        path = run / self.path
        elsewhere = run.parent / "elsewhere"
        if self.kind in ("value", "key"):
            _change(path, self.where, self.what if self.kind == "value" else None)
        elif self.kind in ("cut", "byte"):
            content = path.read_bytes()
            at = int(float(self.what) * len(content))
            path.write_bytes(content[:at] + (b"\xff" if self.kind == "byte" else b""))
        else:
            shutil.move(path, elsewhere)
            {
                "gone": lambda: None,
                "link": lambda: path.symlink_to(elsewhere),
                "dangling": lambda: path.symlink_to("nothing"),
                "loop": lambda: path.symlink_to(path),
                "pipe": lambda: os.mkfifo(path),
                "file": lambda: path.write_text("a file"),
                "folder": lambda: path.mkdir(),
            }[self.kind]()


def _change(path: Path, where: tuple[str | int, ...], raw: Any) -> None:
    """Replace a value of a JSON file; remove the value if `raw` is None."""
    mark = "in the place of"
    whole = {"": json.loads(path.read_text(encoding="utf-8"))}
    *inner, last = ("", *where)
    parent: Any = whole
    for key in inner:
        parent = parent[key]
    if raw is None:
        del parent[last]
    else:
        parent[last] = mark
    text = json.dumps(whole[""]) if whole else ""
    path.write_text(text.replace(f'"{mark}"', str(raw)), encoding="utf-8")


def _values(x: Any, where: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield where
    parts = x.items() if isinstance(x, dict) else enumerate(x if isinstance(x, list) else ())
    for key, part in parts:
        yield from _values(part, (*where, key))


def damages(place: Path) -> st.SearchStrategy[Damage]:
    """Draw damages of the run that `check` makes in a folder."""
    run = _whole(str(place))
    paths = sorted(str(x.relative_to(run)) for x in run.rglob("*"))
    texts = [x for x in paths if x.endswith(".json")]
    values = [(x, y) for x in texts for y in _values(json.loads((run / x).read_text()))]
    value, raw = st.sampled_from(values), st.sampled_from(RAW)
    part = st.floats(0, 1, exclude_max=True)
    return st.one_of(
        st.builds(lambda at, raw: Damage(at[0], "value", at[1], raw), value, raw),
        st.builds(lambda at: Damage(at[0], "key", at[1]), value),
        st.builds(Damage, st.sampled_from(texts), st.just("cut"), st.just(()), part),
        st.builds(Damage, st.sampled_from(texts), st.just("byte"), st.just(()), part),
        st.builds(Damage, st.sampled_from(paths), st.sampled_from(PLACES)),
    )


def _content(folder: Path) -> dict[str, Any]:
    """Return the contents of a folder, with links and pipes unread."""

    def of(path: Path) -> Any:
        if path.is_symlink():
            return os.readlink(path)
        return path.read_bytes() if path.is_file() else path.is_fifo()

    return {str(path.relative_to(folder)): of(path) for path in folder.rglob("*")}


def _report(run: Path) -> None:
    record = rebuild(run)
    console = PlainConsole(file=StringIO(), force_terminal=True, _environ={})
    show_outcome(console, record, run)
    for name in ("score", "difference", "trial", "epoch", "search"):
        table = getattr(exports, f"{name}_table")(record)
        exports.to_csv(table)
        exports.to_latex(table)


def _export(run: Path) -> None:
    exports.export(rebuild(run), run.parent / "exported")


WAYS: dict[str, Callable[[Path], Any]] = {
    "report": _report,
    "export": _export,  # with pictures, so it takes longer
    "merge": lambda run: merge([run, run.parent / "whole"], run.parent / "merged"),
    "continue": go_on,
    "ask": find_trial,
}
_MADE = ("comparison.json", "report.html", "about.json", "lock", "failures")
"""Files that opening a run may rewrite."""


@contextmanager
def _no_waiting() -> Iterator[None]:
    def wait_is_over(number: int, frame: object) -> None:
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, wait_is_over)
    signal.alarm(HANG)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(place: Path, way: str, damage: Damage) -> bool:
    """Assert that a damaged run opens, or raises one sentence and writes nothing.

    Return whether the run opens.
    """
    whole = _whole(str(place))
    for path in set(place.iterdir()) - {whole}:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    run = shutil.copytree(whole, place / "run")
    damage.do(run)
    before = _content(place)
    try:
        with _no_waiting():
            WAYS[way](run)
    except InputError as refusal:
        message = str(refusal)
        assert len(message.splitlines()) == 1
        assert len(message) < 1000
        assert _content(place) == before, message
        return False
    after = _content(place)
    changed = {path for path, content in before.items() if after.get(path) != content}
    new = after.keys() - before.keys()
    assert not [x for x in changed if not x.startswith(tuple(f"run/{y}" for y in _MADE))]
    assert not [x for x in new if not x.startswith(("run/", "merged", "exported"))]
    return True
