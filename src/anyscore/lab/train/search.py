"""The search for one score's learning rate, and width if asked, by its loss on the validation set.

    chosen = argmin over the trainings of the lowest validation loss of any epoch

Optuna proposes (tree-structured Parzen estimators: Bergstra et al. 2011) and ends a training whose
loss is above the median of the same score's earlier ones. The first training has the settings' own
numbers, so that the choice is never worse than them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anyscore.lab.data.encoding import Encoded
from anyscore.lab.errors import TrialFailure
from anyscore.lab.run_folder import part_of
from anyscore.lab.train.models import build_model
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.training import cpu_threads, reported_failures, train
from anyscore.lab.trials import Outcome, Report, Trial, file_name

_RANGE = 8.0
"""Learning rates from an eighth of the settings' to eight times as much."""
_DRAWN = 4
"""So many first trainings are drawn at random, and not ended early."""


@dataclass(frozen=True)
class Search:
    """Trains a trial's score `trainings` times; a `Train`, which can be pickled.

    The outcome's facts are "chosen", numbers of `Settings` by name, and "tried". A record of
    "tried" has a training's numbers, "valid_loss" (None if it failed) and "state".

    Attributes:
        data: the task in numbers.
        settings: of the first training.
        trainings: how many there are.
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
        """Carry out the trainings that the journal lacks; return their choice."""
        with cpu_threads(self.threads):
            for number in range(len(self._tried(trial.score)), self.trainings):
                self._train(trial, number, report)
        tried = self._tried(trial.score)
        complete = [training for training in tried if training["state"] == "complete"]
        if not complete:
            raise TrialFailure(f"none of {len(tried)} trainings succeeded: {tried[-1]['failure']}")
        best = min(complete, key=lambda training: float(training["valid_loss"]))
        chosen = {name: best[name] for name in ("learning_rate", "hidden") if name in best}
        return Outcome(
            {"valid_loss": [-best["valid_loss"]]}, facts={"chosen": chosen, "tried": tried}
        )

    def _train(self, trial: Trial, number: int, report: Report) -> None:
        """Carry out the training of this number, and write its result to the journal."""
        import optuna

        study = self._study(trial.score, number)
        if number == 0:
            usual = {"learning_rate": self.settings.learning_rate, "hidden": self.settings.hidden}
            study.enqueue_trial(usual if self.widths else {"learning_rate": usual["learning_rate"]})
        proposal = study.ask()
        settings = replace(self.settings, **self._propose(proposal))

        def pass_on(details: dict[str, Any]) -> None:
            if "epoch" in details:
                proposal.report(details["valid_loss"], details["epoch"])
                if proposal.should_prune():
                    raise optuna.TrialPruned
            else:
                done = number * details["steps"] + details["step"]  # of all trainings
                report({"step": done, "steps": self.trainings * details["steps"]})

        try:
            with reported_failures():
                model = build_model(trial.score, self.data, settings, trial.seed)
                epochs = train(model, self.data, settings, seed=trial.seed, report=pass_on)
        except optuna.TrialPruned:
            study.tell(proposal, state=optuna.trial.TrialState.PRUNED)
        except TrialFailure as failure:
            proposal.set_user_attr("failure", str(failure))
            study.tell(proposal, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(proposal, min(epoch["valid_loss"] for epoch in epochs))

    def _study(self, score: str, number: int) -> Any:
        """Open the study, to propose training `number` from the earlier ones and nothing else."""
        import optuna
        from optuna.samplers import TPESampler
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.folder.mkdir(parents=True, exist_ok=True)
        journal = self._journal(score)
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

    def _journal(self, score: str) -> Path:
        return part_of(self.folder, f"{file_name(score)}.journal")

    def _propose(self, proposal: Any) -> dict[str, Any]:
        """Return numbers of `Settings` for a training."""
        rate, hidden = self.settings.learning_rate, self.settings.hidden
        numbers = {
            "learning_rate": proposal.suggest_float(
                "learning_rate", rate / _RANGE, rate * _RANGE, log=True
            )
        }
        if self.widths:
            half = max(1, hidden // 2)
            if self.settings.model == "transformer":  # heads divide the width
                half = max(1, half // self.settings.heads) * self.settings.heads
            numbers["hidden"] = proposal.suggest_categorical("hidden", [half, hidden, 2 * hidden])
        return numbers

    def _tried(self, score: str) -> list[dict[str, Any]]:
        """Return the trainings that ended, in order; one killed with its process is none."""
        if not self._journal(score).exists():
            return []
        trainings = []
        for trial in self._study(score, 0).get_trials(deepcopy=False):
            failure = trial.user_attrs.get("failure")
            state = "failed" if failure else trial.state.name.lower()
            if state in ("complete", "pruned", "failed"):
                losses = [*trial.intermediate_values.values(), *(trial.values or [])]
                loss = min(losses) if losses and not failure else None
                trainings.append(
                    {**trial.params, "valid_loss": loss, "state": state, "failure": failure}
                )
        return trainings
