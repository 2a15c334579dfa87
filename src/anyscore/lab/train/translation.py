"""The laboratory trains a small model on pairs of sequences as a trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from anyscore.lab.data.encoding import Encoded, Item
from anyscore.lab.data.tokens import EOS, SPECIALS
from anyscore.lab.errors import TrialFailure
from anyscore.lab.report.examples import choose_examples
from anyscore.lab.train.answering import answers
from anyscore.lab.train.checkpoint import save_run
from anyscore.lab.train.cost import parameters, peak_memory
from anyscore.lab.train.metrics import SCORE_OF_SUMS, matches, statistics
from anyscore.lab.train.model import Model
from anyscore.lab.train.models import build_model, check_fits
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.together import ALONE, Group
from anyscore.lab.train.training import (
    best_epoch,
    cpu_threads,
    reported_failures,
    train,
)
from anyscore.lab.trials import Outcome, Report, Trial


@dataclass(frozen=True)
class TranslationTrain:
    """Trains and tests the settings' model on data, one trial a call; can be pickled.

    The outcome has exact match, chrF and BLEU of the test items, answered by the model of the best
    epoch, and examples with attention weights.

    Attributes:
        threads: of PyTorch while it trains; None changes nothing.
        group: the processes that train together; only the first one's outcome has a meaning.
        chosen: numbers of `Settings` by score, from a search; None without a search.

    Raises:
        InputError: the settings do not fit together, or the model does not fit the data.

    Raises (when called):
        TrialFailure: the loss stops being a number, there is not enough memory, or a search found
            nothing for the score.
    """

    data: Encoded
    settings: Settings
    threads: int | None = None
    group: Group = ALONE
    chosen: Mapping[str, Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        self.settings.check()
        check_fits(self.settings.model, self.data)

    def __call__(self, trial: Trial, report: Report) -> Outcome:
        """Train and test one trial; see `trials.Train`."""
        settings = self.settings
        if self.chosen is not None:
            if trial.score not in self.chosen:
                raise TrialFailure("the search for its learning rate failed")
            settings = replace(settings, **self.chosen[trial.score])
        # Of several processes, one that lacks memory ends them all.
        failures = reported_failures() if self.group.size == 1 else nullcontext()
        with cpu_threads(self.threads), failures:
            return _run(self.data, settings, trial, report, self.group)


def _run(data: Encoded, settings: Settings, trial: Trial, report: Report, group: Group) -> Outcome:
    """Train one trial, answer the test items, and collect the outcome."""
    model = build_model(trial.score, data, settings, trial.seed)
    shard_settings = replace(settings, batch_size=math.ceil(settings.batch_size / group.size))
    facts: dict[str, Any] = {
        "parameters": parameters(model),
        "score_parameters": sum(x.numel() for x in model.score_parameters().values()),
        "peak_memory_mib": peak_memory(model, data, shard_settings),
    }
    epochs = train(
        model,
        data,
        settings,
        seed=trial.seed,
        learning_rate=trial.learning_rate,
        report=report,
        group=group,
    )
    if group.rank:
        return Outcome({})
    if group.size > 1:
        facts["processes"] = group.size
    facts["best_epoch"] = best_epoch(epochs)
    facts["examples"] = _examples(model, data, choose_examples(data.test))
    test_answers = answers(model, data, data.test)
    outputs = [data.target_tokeniser.detokenise(answer.tokens) for answer in test_answers]
    references = [item.references for item in data.test]
    rows = statistics(outputs, references, characters=data.unit in ("character", "label"))
    facts["related"] = _chrf(rows)
    # The overlap with references of other sources is the chance level.
    unrelated = statistics(outputs, [*references[1:], references[0]], characters=False)
    facts["unrelated"] = _chrf(unrelated)
    return Outcome(
        measures={
            "exact_match": matches(
                [answer.tokens for answer in test_answers], [item.answers for item in data.test]
            )
        },
        statistics=dict(rows),
        outputs=outputs,
        epochs=epochs,
        facts=facts,
        save=lambda folder: save_run(folder, model, data, settings, asdict(trial)),
    )


def _chrf(rows: dict[str, list[list[int]]]) -> float:
    """Return chrF of the sums of its rows."""
    return float(SCORE_OF_SUMS["chrf"](np.array(rows["chrf"], np.float64).sum(0)))


def _examples(model: Model, data: Encoded, shown: Sequence[Item]) -> list[dict[str, Any]]:
    """Collect the data of each item's heatmap: a row of weights per output token."""
    examples = []
    shown_answers = answers(model, data, shown, return_weights=True)
    right = matches([answer.tokens for answer in shown_answers], [item.answers for item in shown])
    for item, answer, correct in zip(shown, shown_answers, right, strict=True):
        assert answer.weights is not None
        end = [SPECIALS[EOS]] if answer.complete else []
        examples.append(
            {
                "source": list(item.source),
                "output": [*answer.tokens, *end],
                "references": list(item.references),
                "weights": [[round(w, 4) for w in row] for row in answer.weights.tolist()],
                "right": bool(correct),
            }
        )
    return examples
