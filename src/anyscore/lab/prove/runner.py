"""The runner of proofs trains each part as a comparison of the laboratory, in its own folder.

    OUT/NAME/PART/…        a comparison: trials, comparison.json, report.html
    OUT/NAME/NAME.png      the picture of a proof that has one
    OUT/proofs.json        the record of all proofs
    OUT/report.html        the same as a page

docs/file_formats.md describes the files.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from anyscore import __version__
from anyscore.lab.comparison import Comparison
from anyscore.lab.finished import Finished
from anyscore.lab.info import describe_machine
from anyscore.lab.prove.judge_claims import judge_claims
from anyscore.lab.prove.names import MODULES
from anyscore.lab.prove.proof import Part, Proof
from anyscore.lab.records import finite, write_record
from anyscore.lab.report.proofs import write_proofs
from anyscore.lab.rounds import Plan
from anyscore.lab.run_folder import part_of, write_whole
from anyscore.lab.session import COMPILER, Execution, Watcher, compare
from anyscore.lab.trials import Outcome, Report, Train, Trial
from anyscore.lab.verdict.judge import judge
from anyscore.score import SCORES

RECORD_FILE = "proofs.json"
REPORT_FILE = "report.html"


@dataclass(frozen=True)
class _Timed:
    """Trains, and adds the processor time to the facts."""

    train: Train

    def __call__(self, trial: Trial, report: Report) -> Outcome:
        start = time.process_time()
        outcome = self.train(trial, report)
        seconds = time.process_time() - start
        return replace(outcome, facts={**outcome.facts, "processor_seconds": seconds})


class ProofWatcher:
    """Callbacks for the progress of proofs; the default does nothing."""

    def begins(self, proof: Proof, part: Part) -> Watcher:
        """Take note that a part begins; return the watcher of its comparison."""
        return Watcher()

    def ended(self, result: dict[str, Any]) -> None:
        """Take the result of a proof."""


def run_proofs(
    proofs: Sequence[Proof],
    *,
    seeds: int,
    out: Path,
    jobs: int,
    command: str | None = None,
    watcher: ProofWatcher | None = None,
    here: bool = False,
) -> dict[str, Any]:
    """Train the missing trials of the proofs, decide which claims stand, write a report.

    Args:
        seeds: trials of each score.
        out: a new folder, or one of proofs: finished trials are not trained again.
        jobs: trials side by side, in processes of their own.
        command: the command line as it was typed.
        watcher: gets the events of the proofs.
        here: run trials in this process instead.

    Returns:
        The record that `proofs.json` in `out` holds; see docs/file_formats.md.

    Raises:
        InputError: a folder holds something else, or trials of other settings.
        RunFailure: the disk is full or a file cannot be written.
    """
    watcher = watcher or ProofWatcher()
    results: list[dict[str, Any]] = []
    interrupted = False
    for proof in proofs:
        for part in proof.parts:
            comparison = compare(
                _Timed(part.train),
                Plan(part.scores, seeds),
                _folder(out, proof, part),
                shared={
                    "task": {"name": part.name, "description": f"{proof.title}: {part.name}"},
                    "settings": {"proof": proof.name, **part.settings},
                },
                measures=part.measures,
                execution=Execution(jobs, here, (MODULES[proof.name], COMPILER)),
                watcher=watcher.begins(proof, part),
                about=lambda: {"command": command, "machine": describe_machine("cpu")},
            )
            interrupted = interrupted or comparison["interrupted"]
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
            "scores": list(SCORES),
            "interrupted": interrupted,
            "proofs": results,
        }
    )
    write_record(out / RECORD_FILE, record, indent=1)
    write_proofs(record, out, out / REPORT_FILE)
    return record


def result(proof: Proof, out: Path, seeds: int) -> dict[str, Any]:
    """Return the result of a proof by the trials in a folder: plain data, the picture in a file."""
    parts: list[dict[str, Any]] = []
    trials_by_part: dict[str, list[Finished]] = {}
    seconds = 0.0
    for part in proof.parts:
        folder = _folder(out, proof, part)
        comparison = Comparison(folder)
        trials = [x for x in comparison.finished() if x.trial.seed < seeds]
        trials_by_part[part.name] = trials
        seconds += sum(x.facts.get("processor_seconds") or 0.0 for x in trials)
        wanted = [Trial(score, seed) for score in part.scores for seed in range(seeds)]
        parts.append(
            {
                "name": part.name,
                "report": (folder / REPORT_FILE).relative_to(out).as_posix(),
                "items": len(next(iter(trials[0].measures.values()))) if trials else 0,
                "scores": list(part.scores),
                "published": [proof.published.get((part.name, score)) for score in part.scores],
                "failures": {
                    trial.name: why for trial in wanted if (why := comparison.failure(trial))
                },
                "measures": [
                    {
                        "name": measure.name,
                        "title": measure.title,
                        "standings": judge(trials, measure)["standings"],
                    }
                    for measure in part.measures
                ],
            }
        )
    description = {
        name: getattr(proof, name)
        for name in ("name", "title", "paper", "source", "words", "task", "differences")
    }
    picture = _draw(proof, out)
    return {
        **description,
        **judge_claims(proof, trials_by_part),
        "parts": parts,
        "processor_seconds": seconds,
        "picture": picture
        and {"file": picture, "shows": proof.picture[1] if proof.picture else ""},
    }


def _draw(proof: Proof, out: Path) -> str | None:
    """Draw the picture of a proof once; return its file, relative to `out`."""
    if proof.picture is None:
        return None
    path = out / proof.name / f"{proof.name}.png"
    if not path.exists():
        write_whole(path, proof.picture[0]())
    return path.relative_to(out).as_posix()


def _folder(out: Path, proof: Proof, part: Part) -> Path:
    """Return the folder of a part."""
    return part_of(out, proof.name, re.sub(r"[^\w-]+", "-", part.name).strip("-"))
