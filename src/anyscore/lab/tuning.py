"""Searches choose settings for every score, side by side, in a folder of the comparison.

RUN/tuning/                  a comparison whose trials are searches: (score, seed) → its numbers
RUN/tuning/SCORE.journal     the trainings of a search that has not ended
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anyscore.lab.comparison import Comparison
from anyscore.lab.engine import Event
from anyscore.lab.errors import InputError
from anyscore.lab.forms import NUMBER, TEXT, WHOLE, each, having, maybe
from anyscore.lab.rounds import Run, carry_out
from anyscore.lab.run_folder import folder_in
from anyscore.lab.trials import Trial

TUNING = "tuning"
SEED = 1_000_003
"""The seed of the searches' trainings, by which no trial is judged."""
_SEARCH = having(
    {
        "chosen": having({"learning_rate": NUMBER}, {"hidden": WHOLE}),
        "tried": each(
            having(
                {
                    "learning_rate": NUMBER,
                    "valid_loss": maybe(NUMBER),
                    "state": TEXT,
                    "failure": maybe(TEXT),
                },
                {"hidden": WHOLE},
            )
        ),
    }
)


def tune(
    folder: Path,
    scores: Sequence[str],
    run: Run,
    *,
    shared: Mapping[str, Any],
    on_event: Callable[[Event], None],
) -> None:
    """Carry out the missing searches; `search_results` reads their choices.

    Args:
        folder: of the comparison.
        scores: names of the scores.
        run: runs searches, as `engine.run_processes` does.
        shared: plain data that distinguishes these searches from others.
        on_event: takes the events of the searches.

    Raises:
        InputError: the folder holds other searches.
        RunFailure: the folder cannot be written to.
    """
    searches = Comparison(folder_in(folder, TUNING))
    with searches.opened(shared):
        carry_out(searches, [Trial(score, SEED) for score in scores], run, on_event)


def search_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the results of the finished searches of a comparison.

    Returns:
        By score, "chosen" and "tried"; see `train.search.Search`.

    Raises:
        InputError: a search is damaged.
    """
    results = {}
    for search in Comparison(folder_in(folder, TUNING)).finished():
        try:
            _SEARCH(search.facts, "facts")
        except ValueError as error:
            raise InputError(
                f"{folder / TUNING / 'trials' / search.trial.name}: damaged ({error}); remove it, "
                "and the search is made again"
            ) from None
        results[search.trial.score] = {name: search.facts[name] for name in ("chosen", "tried")}
    return results
