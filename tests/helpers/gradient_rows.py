"""The rows of the table of gradients, and their exact gradients."""

from __future__ import annotations

from functools import cache

import numpy as np

from helpers.cases import MASKS, OPTIONS, SCORES, SHAPES, applicable, case
from helpers.oracle_gradients import gradients, largest_terms

GRADIENT_ROWS = sorted(
    {(score, "heads", m) for score in SCORES for m in ("none", "four", "lengths", "boolean_full")}
    | {(score, s, "four") for score in SCORES for s in ("grouped_6_2", "rank_2", "broadcast")}
    | {(score, shape, "lengths_full") for score in ("dot", "gatv2") for shape in SHAPES}
    | {(score, "heads", mask) for score in ("trilinear", "concat") for mask in MASKS}
    | {(score, shape, "four") for score in OPTIONS for shape in ("heads", "grouped_6_2")}
)  # fmt: skip
GRADIENT_ROWS = [row for row in GRADIENT_ROWS if applicable(*row[1:])]


@cache
def projections(row: tuple[str, str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Return random upstream gradients of output and log-sum-exp, for one backward."""
    c, rng = case(*row), np.random.default_rng(3)
    lead = (*c.shape.lead, c.shape.queries)
    return rng.standard_normal((*lead, c.value.shape[-1])), rng.standard_normal(lead)


@cache
def exact_gradients(row: tuple[str, str, str]) -> dict[str, np.ndarray]:
    c = case(*row)
    score = c.score.build(c.parameters, np.asarray)
    return gradients(c.query, c.key, c.value, score, *projections(row), **c.masking(np.asarray))


def terms(row: tuple[str, str, str]) -> dict[str, float]:
    c = case(*row)
    score, masking = c.score.build(c.parameters, np.asarray), c.masking(np.asarray)
    return largest_terms(c.query, c.key, c.value, score, *projections(row), **masking)
