"""Exact results of extras agree with definitions, hand-made numbers and central differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helpers import oracle
from helpers.budget import EPS
from helpers.by_pair import by_pair
from parity import beyond, textbook
from parity.extras import EXTRAS
from parity.logits import logits
from parity.rows import ROWS, Row, attended, clean, kept, upstream

LENGTHS = [row for row in ROWS if row[3] and row[1:3] == ("heads", "lengths")]
each = by_pair("row", LENGTHS, ids="-".join)


@each
def test_gradients_are_those_of_the_values(row: Row) -> None:
    """Gradients equal central differences along one random direction of each tensor."""
    given, rng, step = clean(row, "float32"), np.random.default_rng(0), 1e-6
    found, times = beyond.exact_of(row, given), upstream(row)
    assert {name for name in found if name.startswith("gradient")} == {
        f"gradient of {name}" for name in given
    }

    def loss(name: str, by: np.ndarray) -> float:
        values = beyond.exact_of(row, given | {name: given[name] + by})
        finite = {x: np.where(np.isfinite(values[x]), values[x], 0.0) for x in times}
        return math.fsum((times[x] * finite[x]).sum() for x in times)

    for name, x in given.items():
        direction = np.where(attended(row, name), rng.standard_normal(x.shape), 0.0)
        slope = (loss(name, step * direction) - loss(name, -step * direction)) / (2 * step)
        exact = (found[f"gradient of {name}"] * direction).sum()
        assert slope == pytest.approx(exact, rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("extra", ["weights", "log_weights", "sink"])
def test_softmax(extra: str) -> None:
    """Results equal the oracle's loops; a sink is one more logit."""
    row = ("additive", "heads", "lengths", extra)
    given, found = clean(row, "float32"), beyond.exact(row, "float32")
    whole = textbook.exact((*row[:3], ""), "float32")
    if extra == "weights":
        for name in EXTRAS[extra].results:
            np.testing.assert_allclose(found[name], whole[name], rtol=1e-13, atol=1e-15)
    elif extra == "log_weights":
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(found[extra], np.log(whole["weights"]), rtol=1e-12)
    else:
        s = beyond.exact((*row[:3], "scores"), "float32")["scores"]
        for at in np.ndindex(*s.shape[:-1]):
            sink = float(given["sink"][at[-2]])
            w, lse = oracle.softmax([*s[at][kept(row)[at]].tolist(), sink])
            assert found["lse"][at] == pytest.approx(lse, rel=1e-13)
            np.testing.assert_allclose(found["weights"][at][kept(row)[at]], w[:-1], rtol=1e-12)


@pytest.mark.parametrize("name", ["sigmoid", "sparsemax", "entmax15"])
@pytest.mark.parametrize("mask", ["none", "four", "lengths_full"])
def test_normalizers(name: str, mask: str) -> None:
    """Sparse weights sum to 1 over one threshold; the sigmoid takes scores less log n."""
    row = ("euclidean", "heads", mask, name)
    weights = beyond.exact(row, "float32")["weights"]
    s = beyond.exact((*row[:3], "scores"), "float32")["scores"]
    some = 0
    for at in np.ndindex(*s.shape[:-1]):
        x, w = s[at][kept(row)[at]], weights[at][kept(row)[at]]
        assert not weights[at][~kept(row)[at]].any()
        if not len(x):
            continue
        if name == "sigmoid":
            np.testing.assert_allclose(w, 1 / (1 + np.exp(math.log(len(x)) - x)), rtol=1e-13)
            continue
        tau = x - w if name == "sparsemax" else x / 2 - np.sqrt(w)
        tau, has = tau[w > 0], w > 0
        assert w.sum() == pytest.approx(1, abs=1e-13)
        np.testing.assert_allclose(tau, tau[0], atol=1e-7)
        assert (x[~has] * (1 if name == "sparsemax" else 0.5) <= tau[0] + 1e-7).all()
        some += (~has).sum()
    assert name == "sigmoid" or some


def test_no_score_is_near_the_threshold_of_sparsemax() -> None:
    """Gradients jump at the threshold. Scores of half precision are added up in float32 too."""
    for row in (row for row in ROWS if row[3] == "sparsemax"):
        for dtype in ("float32", "float16", "bfloat16"):
            weights = beyond.exact(row, dtype)["weights"]
            s = beyond.exact((*row[:3], "scores"), dtype)["scores"]
            for at in np.ndindex(*s.shape[:-1]):
                x, w = s[at][kept(row)[at]], weights[at][kept(row)[at]]
                if len(x) > 1:
                    tau = (x - w)[w > 0][0]
                    assert np.abs(x - tau).min() > 16 * EPS["float32"] * np.abs(x).max(), row


def test_logits_by_hand() -> None:
    """Logits are right for biases before and after a cap or a root, for tables and for slopes."""
    one = torch.full((2, 3, 5, 7), -2.0)

    def entry(score: str, extra: str, name: str, x: torch.Tensor) -> torch.Tensor:
        return logits((score, "heads", "none", extra), one, {name: x})[0, 1]

    b = torch.full((3, 5, 7), 5.0)
    assert entry("euclidean", "bias", "bias", b)[0, 0].item() == -3
    assert entry("euclidean", "bias_after", "bias_after", b)[0, 0].item() == 3
    inside = entry("dot", "capped_bias", "bias", b)[0, 0].item()
    assert inside == pytest.approx(2.5 * math.tanh(3 / 2.5))
    after = entry("dot", "capped_bias_after", "bias_after", b)[0, 0].item()
    assert after == pytest.approx(2.5 * math.tanh(-2 / 2.5) + 5)
    table = torch.arange(5.0).expand(3, 5)
    found = entry("dot", "relative", "bias_after", table) + 2
    assert found[0].tolist() == [0, 1, 2, 3, 4, 4, 4]  # the first query has the position of key 2
    assert found[4].tolist() == [0, 0, 0, 0, 0, 1, 2]
    found = entry("dot", "t5", "bias_after", torch.arange(8.0).expand(3, 8)) + 2
    assert found[0, 1:4].tolist() == [1, 0, 5]
    found = entry("dot", "alibi", "bias_after", torch.tensor([1.0, 0.5, 2.0])) + 2
    assert found[0].tolist() == [-1, -0.5, 0, -0.5, -1, -1.5, -2]
