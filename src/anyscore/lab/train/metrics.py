"""Quality of outputs: right or wrong item by item, chrF and BLEU by sums over the items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

Sums = npt.NDArray[np.float64]


def matches(
    outputs: Sequence[Sequence[str]], answers: Sequence[Sequence[Sequence[str]]]
) -> list[float]:
    """Return 1.0 for each output that equals one of its right answers, token for token; else
    0.0."""
    return [
        float(any(list(output) == list(answer) for answer in accepted))
        for output, accepted in zip(outputs, answers, strict=True)
    ]


def exact_match(
    outputs: Sequence[Sequence[str]], answers: Sequence[Sequence[Sequence[str]]]
) -> float:
    """Return the fraction of outputs that equal one of their right answers, token for token."""
    right = matches(outputs, answers)
    return sum(right) / len(right)


def statistics(
    outputs: Sequence[str], references: Sequence[Sequence[str]], *, characters: bool
) -> dict[str, list[list[int]]]:
    """Count the n-grams of each output for chrF and BLEU, against all its references.

    Args:
        outputs, references: texts.
        characters: BLEU counts n-grams of characters, where these are the tokens: one word has no
            n-grams of words.

    Returns:
        A row per output. "chrf": n-grams of (output, reference, both), of each order from 1 to 6.
        "bleu": lengths of output and reference; then n-grams in both, and n-grams of the output, of
        each order from 1 to 4.
    """
    most = max(len(accepted) for accepted in references)
    # sacrebleu wants one list per reference number; None where an item has fewer references.
    streams: Any = [
        [accepted[i] if i < len(accepted) else None for accepted in references] for i in range(most)
    ]
    bleu = BLEU(force=True, tokenize="char" if characters else "13a")
    # By these rows sacrebleu makes its own paired tests; they have no public name.
    return {
        "chrf": CHRF()._extract_corpus_statistics(list(outputs), streams),
        "bleu": bleu._extract_corpus_statistics(list(outputs), streams),
    }


def chrf_of(sums: Sums) -> Sums:
    """Compute chrF in [0, 100] of sums of its rows (..., 18): F₂ of mean precision and recall.

    Popović, "chrF: character n-gram F-score for automatic MT evaluation", 2015.
    """
    in_output, in_reference, both = np.moveaxis(np.reshape(sums, (*sums.shape[:-1], -1, 3)), -1, 0)
    counted = (in_output > 0) & (in_reference > 0)
    orders = np.maximum(counted.sum(-1), 1)
    precision = np.where(counted, both / np.maximum(in_output, 1), 0).sum(-1) / orders
    recall = np.where(counted, both / np.maximum(in_reference, 1), 0).sum(-1) / orders
    denominator = 4 * precision + recall
    score: Sums = 100 * 5 * precision * recall / np.where(denominator > 0, denominator, 1)
    return score


def bleu_of(sums: Sums) -> Sums:
    """Compute BLEU in [0, 100] of sums of its rows (..., 10).

    The k-th order without a match counts 2⁻ᵏ.

    Papineni et al., "BLEU: a method for automatic evaluation of machine translation", 2002.
    """
    output_length, reference_length = sums[..., 0], sums[..., 1]
    both, in_output = sums[..., 2:6], sums[..., 6:10]
    missed = (both == 0) & (in_output > 0)
    matched = np.where(missed, 0.5 ** np.cumsum(missed, axis=-1), both)
    logs = np.log(np.where(in_output > 0, matched / np.maximum(in_output, 1), 1)).mean(-1)
    short = np.minimum(1 - reference_length / np.maximum(output_length, 1), 0)
    positive = both.any(-1) & (in_output > 0).all(-1)
    score: Sums = np.where(positive, 100 * np.exp(logs + short), 0)
    return score


SCORE_OF_SUMS: dict[str, Callable[[Sums], Sums]] = {"chrf": chrf_of, "bleu": bleu_of}
"""By the name of statistics, the function from their sums over the items to the measure."""
COLUMNS = {"chrf": 18, "bleu": 10}
"""By the name of statistics, the length of a row."""
