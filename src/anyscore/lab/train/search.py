"""The search for one score's learning rate, and width if asked, by its loss on the validation set.

    chosen = argmin over the trainings of the lowest validation loss of any epoch

Optuna proposes (tree-structured Parzen estimators: Bergstra et al. 2011) and ends a training whose
loss is above the median of the same score's earlier ones. The first training is at the settings'
own numbers, so that what is chosen is never worse than those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anyscore.lab.data.encoding import Encoded
from anyscore.lab.errors import TrialFailure
from anyscore.lab.train.models import build_model
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.training import cpu_threads, reported_failures, train
from anyscore.lab.trials import Outcome, Report, Trial

_RANGE = 8.0
"""Learning rates from an eighth of the settings' to eight times as much."""
_DRAWN = 4
"""Trainings at random, and none ended early, before proposals go by what is known."""


@dataclass(frozen=True)
class Search:
    """Trains a trial's score `trainings` times; a `Train`, which can be pickled.

    The outcome's facts are "chosen", numbers of `Settings` by name, and "tried", a record for each
    training: those numbers, "valid_loss" (None if it failed) and "state".

    Attributes:
        widths: whether half and twice the width of the settings are tried too.
        folder: of the journal, SCORE.journal, from which a search that was killed goes on.
        threads: of PyTorch.

    Raises (when called):
        TrialFailure: no training succeeded, or the journal is damaged.
    """

    data: Encoded
    settings: Settings
    trainings: int
    widths: bool
    folder: Path
    threads: int | None = None

    def __call__(self, trial: Trial, report: Report) -> Outcome:
        with cpu_threads(self.threads):
            for number in range(len(self._tried(trial.score)), self.trainings):
                self._train(trial, number, report)
        tried = self._tried(trial.score)
        ended = [x for x in tried if x["state"] == "complete"]
        if not ended:
            raise TrialFailure(f"none of {len(tried)} trainings succeeded: {tried[-1]['failure']}")
        best = min(ended, key=lambda x: float(x["valid_loss"]))
        chosen = {name: best[name] for name in ("learning_rate", "hidden") if name in best}
        return Outcome(
            {"valid_loss": [-best["valid_loss"]]}, facts={"chosen": chosen, "tried": tried}
        )

    def _train(self, trial: Trial, number: int, report: Report) -> None:
        import optuna

        study = self._study(trial.score, number)
        if number == 0:
            usual = {"learning_rate": self.settings.learning_rate, "hidden": self.settings.hidden}
            study.enqueue_trial(usual if self.widths else {"learning_rate": usual["learning_rate"]})
        asked = study.ask()
        settings = replace(self.settings, **self._propose(asked))
        steps = Progress(report, number, self.trainings)

        def tell(told: dict[str, Any]) -> None:
            if "epoch" in told:
                asked.report(told["valid_loss"], told["epoch"])
                if asked.should_prune():
                    raise optuna.TrialPruned
            else:
                steps(told)

        try:
            with reported_failures():
                model = build_model(trial.score, self.data, settings, trial.seed)
                epochs = train(model, self.data, settings, seed=trial.seed, report=tell)
        except optuna.TrialPruned:
            study.tell(asked, state=optuna.trial.TrialState.PRUNED)
        except TrialFailure as failure:
            asked.set_user_attr("failure", str(failure))
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(asked, min(epoch["valid_loss"] for epoch in epochs))

    def _study(self, score: str, number: int) -> Any:
        """The study, to propose training `number` from those before it and nothing else."""
        import optuna
        from optuna.samplers import TPESampler
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.folder.mkdir(parents=True, exist_ok=True)
        journal = self.folder / f"{score}.journal"
        try:
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(journal)))
            return optuna.create_study(
                study_name=score,
                storage=storage,
                sampler=TPESampler(seed=number, n_startup_trials=_DRAWN, constant_liar=False),
                pruner=optuna.pruners.MedianPruner(_DRAWN, n_warmup_steps=1),
                load_if_exists=True,
            )
        except (ValueError, KeyError) as error:
            raise TrialFailure(
                f"{journal}: damaged ({type(error).__name__}); remove it, and the search begins "
                "anew"
            ) from None

    def _propose(self, asked: Any) -> dict[str, Any]:
        """Numbers of `Settings` for a training."""
        rate, hidden = self.settings.learning_rate, self.settings.hidden
        found = {
            "learning_rate": asked.suggest_float(
                "learning_rate", rate / _RANGE, rate * _RANGE, log=True
            )
        }
        if self.widths:
            half = max(1, hidden // 2)
            if self.settings.model == "transformer":  # heads divide the width
                half = max(1, half // self.settings.heads) * self.settings.heads
            found["hidden"] = asked.suggest_categorical("hidden", [half, hidden, 2 * hidden])
        return found

    def _tried(self, score: str) -> list[dict[str, Any]]:
        """The trainings that ended, in order; one that was killed with its process is none."""
        if not (self.folder / f"{score}.journal").exists():
            return []
        found = []
        for one in self._study(score, 0).get_trials(deepcopy=False):
            failure = one.user_attrs.get("failure")
            state = "failed" if failure else one.state.name.lower()
            if state in ("complete", "pruned", "failed"):
                losses = [*one.intermediate_values.values(), *(one.values or [])]
                loss = min(losses) if losses and not failure else None
                found.append({**one.params, "valid_loss": loss, "state": state, "failure": failure})
        return found


@dataclass(frozen=True)
class Progress:
    """Steps of one training told as steps of all."""

    report: Callable[[dict[str, Any]], None]
    number: int
    trainings: int

    def __call__(self, told: dict[str, Any]) -> None:
        done = self.number * told["steps"] + told["step"]
        self.report({"step": done, "steps": self.trainings * told["steps"]})
