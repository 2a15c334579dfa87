"""Proofs carried out: each of their parts is a comparison of the laboratory, in its own folder.

OUT/NAME/PART/…        a comparison: trials, comparison.json, report.html
OUT/NAME/NAME.png      the picture of a proof that has one
OUT/proofs.json        what came of them
OUT/report.html        the same as a page
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from anyscore import __version__
from anyscore.lab.comparison import Comparison, Finished, finite
from anyscore.lab.info import describe_machine
from anyscore.lab.prove.decide import decide
from anyscore.lab.prove.proof import Part, Proof
from anyscore.lab.prove.report import write_report
from anyscore.lab.rounds import Plan
from anyscore.lab.run_folder import write_whole
from anyscore.lab.session import Execution, Watcher, compare
from anyscore.lab.trials import Outcome, Report, Train, Trial
from anyscore.lab.verdict.judge import judge

RECORD_FILE = "proofs.json"
REPORT_FILE = "report.html"


@dataclass(frozen=True)
class _Timed:
    """Trains, and tells how much time of a processor that took."""

    train: Train

    def __call__(self, trial: Trial, report: Report) -> Outcome:
        begun = time.process_time()
        outcome = self.train(trial, report)
        took = time.process_time() - begun
        return replace(outcome, facts={**outcome.facts, "processor_seconds": took})


class ProofWatcher:
    """Is told how proofs go; this one does nothing with it."""

    def begins(self, proof: Proof, part: Part) -> Watcher:
        """A part begins; what it gives is told how that goes."""
        return Watcher()

    def ended(self, result: dict[str, Any]) -> None:
        """A proof has been decided."""


def carry_out(
    proofs: Sequence[Proof],
    *,
    seeds: int,
    out: Path,
    jobs: int,
    command: str | None = None,
    watcher: ProofWatcher | None = None,
    here: bool = False,
) -> dict[str, Any]:
    """Train what `out` lacks of the proofs' trials, decide which claims stand, write a report.

    Args:
        seeds: trials of each score.
        out: a new folder, or one of proofs: trials that are there are not trained again.
        jobs: trials side by side, in processes of their own; `here`: in this one.
        command: what was typed.

    Returns:
        The record that `proofs.json` in `out` holds: "proofs", "machine", "seeds", "interrupted".

    Raises:
        InputError: a folder holds something else, or trials of other settings.
        RunFailure: the disk is full or a file cannot be written.
    """
    watcher = watcher or ProofWatcher()
    results: list[dict[str, Any]] = []
    interrupted = False
    for proof in proofs:
        for part in proof.parts:
            told = compare(
                _Timed(part.train),
                Plan(part.scores, seeds),
                _folder(out, proof, part),
                shared={
                    "task": {"name": part.name, "description": f"{proof.title}: {part.name}"},
                    "settings": {"proof": proof.name, **part.settings},
                },
                measures=part.measures,
                execution=Execution(jobs, here, f"anyscore.lab.prove.{proof.name}"),
                watcher=watcher.begins(proof, part),
                about=lambda: {"command": command, "machine": describe_machine("cpu")},
            )
            interrupted = interrupted or told["interrupted"]
            if interrupted:
                break
        results.append(result(proof, out, seeds))
        watcher.ended(results[-1])
        if interrupted:
            break
    record: dict[str, Any] = finite(
        {
            "anyscore": __version__,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": command,
            "machine": {**describe_machine("cpu"), "threads": 1, "jobs": jobs},
            "seeds": seeds,
            "interrupted": interrupted,
            "proofs": results,
        }
    )
    text = json.dumps(record, ensure_ascii=False, indent=1, allow_nan=False)
    write_whole(out / RECORD_FILE, text.encode())
    write_report(record, out, out / REPORT_FILE)
    return record


def result(proof: Proof, out: Path, seeds: int) -> dict[str, Any]:
    """What the trials in a folder say of a proof: plain data, the picture in a file beside."""
    parts: list[dict[str, Any]] = []
    found: dict[str, list[Finished]] = {}
    seconds = 0.0
    for part in proof.parts:
        folder = _folder(out, proof, part)
        comparison = Comparison(folder)
        trials = [x for x in comparison.finished() if x.trial.seed < seeds]
        found[part.name] = trials
        seconds += sum(x.facts.get("processor_seconds") or 0.0 for x in trials)
        wanted = [Trial(score, seed) for score in part.scores for seed in range(seeds)]
        parts.append(
            {
                "name": part.name,
                "report": (folder / REPORT_FILE).relative_to(out).as_posix(),
                "items": len(next(iter(trials[0].measures.values()))) if trials else 0,
                "scores": list(part.scores),
                "published": [proof.published.get((part.name, s)) for s in part.scores],
                "failures": {
                    trial.name: why for trial in wanted if (why := comparison.failure(trial))
                },
                "measures": [
                    {"name": m.name, "title": m.title, "standings": judge(trials, m)["standings"]}
                    for m in part.measures
                ],
            }
        )
    told = {
        name: getattr(proof, name)
        for name in ("name", "title", "paper", "source", "words", "task", "ours")
    }
    drawn = _draw(proof, out)
    return {
        **told,
        **decide(proof, found),
        "parts": parts,
        "processor_seconds": seconds,
        "picture": drawn and {"file": drawn, "shows": proof.picture[1] if proof.picture else ""},
    }


def _draw(proof: Proof, out: Path) -> str | None:
    """The name of the picture's file in `out`; drawn once."""
    if proof.picture is None:
        return None
    path = out / proof.name / f"{proof.name}.png"
    if not path.exists():
        write_whole(path, proof.picture[0]())
    return path.relative_to(out).as_posix()


def _folder(out: Path, proof: Proof, part: Part) -> Path:
    return out / proof.name / re.sub(r"[^\w-]+", "-", part.name).strip("-")
