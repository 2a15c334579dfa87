"""How good outputs are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


class Quality(TypedDict):
    """A fraction in [0, 1], and two scores in [0, 100]."""

    exact_match: float
    chrf: float
    bleu: float


def exact_match(
    outputs: Sequence[Sequence[str]], answers: Sequence[Sequence[Sequence[str]]]
) -> float:
    """The fraction of outputs that are, token for token, one of their right answers."""
    right = sum(
        any(list(output) == list(answer) for answer in accepted)
        for output, accepted in zip(outputs, answers, strict=True)
    )
    return right / len(outputs)


def corpus_scores(
    outputs: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[float, float]:
    """chrF and BLEU of the outputs against all their references (sacrebleu's defaults)."""
    most = max(len(accepted) for accepted in references)
    # sacrebleu wants one list per reference number; None stands for "this one has fewer".
    streams: Any = [
        [accepted[i] if i < len(accepted) else None for accepted in references] for i in range(most)
    ]
    chrf = CHRF().corpus_score(outputs, streams).score
    bleu = BLEU(force=True).corpus_score(outputs, streams).score
    return float(chrf), float(bleu)
