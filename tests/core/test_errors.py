"""The C++ core refuses wrong operands by name, before any work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.call import Call
from core.draw import draw
from core.raw import backward, core, d_stats, forward, same
from core.raw import run as run_call

pytestmark = pytest.mark.sample

LEAD, QUERIES, KEYS, HIDDEN, WIDTH = (2, 4), 5, 7, 3, 6


def made(**given: Any) -> Call:
    fields: dict[str, Any] = {
        "queries": QUERIES, "keys": KEYS, "hidden": HIDDEN, "width": WIDTH, "lead": LEAD,
        "groups": 2, "weight": np.ones((2, 4, 3), np.float32), "dropout": 0.0,
        "a": np.ones((2, 4, 5, 3), np.float32), "b": np.ones((2, 2, 7, 3), np.float32),
        "value": np.ones((2, 2, 7, 6), np.float32), "key_bias": np.ones((2, 2, 7), np.float32),
        "start": np.zeros((2, 4, 5), np.int64), "stop": np.full((2, 4, 5), 7),
        "mask": np.ones((2, 4, 5, 7), bool), "d_output": np.ones((2, 4, 5, 6), np.float32),
        "d_lse": np.ones((2, 4, 5), np.float32), "outer": "tanh", "outer_scale": 30.0,
        "bias": np.ones((1, 4, 5, 7), np.float32),
    }  # fmt: skip
    return draw(np.random.default_rng(0), "tanh", "none", "float32", **(fields | given))


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


OPERANDS: list[tuple[str, Any]] = [
    ("pair", "cosine"),
    ("a", zeros(1, 2, 4, 5, 3)),  # of a higher rank
    ("b", zeros(2, 2, 7, 4)),  # of another width than a
    ("a", zeros(2, 3, 5, 3)),  # of another number of heads
    ("a", zeros(2, 4, 5, 3, dtype=np.int64)),
    ("a", zeros(2, 4, 5, 3, dtype=bool)),
    ("a", zeros(2, 4, 5, 3, dtype=complex)),
    ("b", zeros(2, 4, 7, 3)),  # not of the groups' number of heads
    ("b", zeros(3, 2, 7, 3)),
    ("b", zeros(4, 7, 3)),  # missing dimensions are the first ones, so this has no batch
    ("b", zeros(3)),
    ("b", zeros(2, 2, 7, 3, dtype=np.int8)),
    ("weight", zeros(2, 4, 4)),
    ("weight", zeros(2, 4, 1)),
    ("weight", zeros(2, 3, 3)),
    ("weight", zeros(2, 3)),
    ("weight", zeros(2, 4, 3, dtype=np.int32)),
    ("key_bias", zeros(2, 4, 7)),
    ("key_bias", zeros(2, 2, 8)),
    ("key_bias", zeros(2, 2, 7, 1)),
    ("value", zeros(2, 2, 8, 6)),
    ("value", zeros(2, 4, 7, 6)),
    ("value", zeros(2, 2, 7)),
    ("bias", zeros(2, 4, 5, 8)),
    ("bias", zeros(2, 2, 5, 7)),  # a bias has the heads of queries
    ("bias", zeros(5, 7, dtype=np.int64)),
    ("diagonal", True),
    ("start", zeros(2, 4, 5)),  # not integers
    ("start", zeros(2, 4, 6, dtype=np.int64)),
    ("start", zeros(2, 4, 5, dtype=np.int16)),
    ("stop", zeros(2, 2, 5, dtype=np.int64)),
    ("stop", zeros(2, 5, dtype=np.int64)),
    ("mask", zeros(2, 4, 5, 8, dtype=bool)),
    ("mask", zeros(2, 4, 6, 7, dtype=bool)),
    ("mask", zeros(2, 5, 7, dtype=bool)),
    ("mask", zeros(2, 4, 5, 7, dtype=np.uint8)),
    ("groups", 0),
    ("groups", 3),
    ("groups", -1),
    ("dropout", 1.0),
    ("dropout", -0.5),
    ("dropout", float("nan")),
    ("period", -1),
    ("outer_scale", -1.0),
    ("outer_scale", 0.0),
    ("outer_scale", float("nan")),
    ("outer_scale", float("inf")),
]


def name(of: tuple[str, Any]) -> str:
    return f"{of[0]}-{of[1].shape}-{of[1].dtype}" if hasattr(of[1], "shape") else f"{of[0]}-{of[1]}"


@pytest.mark.sanitize
@pytest.mark.parametrize("wrong", OPERANDS, ids=name)
def test_wrong_operands(wrong: tuple[str, Any]) -> None:
    """Forward and backward refuse wrong operands by name."""
    which, x = wrong
    named = "bias" if which == "diagonal" else which
    call, results = made(), forward(made())
    object.__setattr__(call, which, x)
    for work in (forward, lambda call: backward(call, results=results)):
        with pytest.raises((ValueError, TypeError), match=rf"{named}\b"):
            work(call)


RESULTS = [
    ("output", zeros(2, 4, 5, 7)),
    ("output", zeros(2, 2, 5, 6)),
    ("output", zeros(4, 5, 6)),
    ("output", zeros(2, 4, 6, 5).swapaxes(2, 3)),  # not C-contiguous
    ("stats", zeros(2, 4, 2, 5, dtype=np.float16)),
    ("stats", zeros(2, 4, 2, 5, dtype=np.int64)),
    ("stats", zeros(2, 4, 2, 10)[..., ::2]),
    ("stats", zeros(2, 4, 5)),
    ("stats", zeros(5)),
    ("output", None),  # but there are values
    ("scores", zeros(2, 4, 5, 6)),
    ("scores", zeros(2, 4, 5, 7, dtype=np.float64)),
    ("scores", zeros(2, 4, 7, 5).swapaxes(2, 3)),
]


@pytest.mark.sanitize
@pytest.mark.parametrize("wrong", RESULTS, ids=name)
def test_wrong_results(wrong: tuple[str, Any]) -> None:
    """The forward refuses wrong result arrays by name."""
    call = made()
    to = {"output": zeros(2, 4, 5, 6), "stats": zeros(2, 4, 2, 5), "scores": None} | dict([wrong])
    with pytest.raises((ValueError, TypeError), match=rf"\b{wrong[0]}\b"):
        core.forward(call.operands(), call.pair, call.numbers, tuple(to.values()), 1)


def test_read_only_results_are_refused() -> None:
    call, output = made(), zeros(2, 4, 5, 6)
    output.flags.writeable = False
    with pytest.raises((ValueError, TypeError)):
        core.forward(call.operands(), call.pair, call.numbers, (output, zeros(2, 4, 5), None), 1)
    assert not output.any()


GRADIENTS = [
    ("d_output", zeros(2, 4, 5, 7)),
    ("d_output", zeros(2, 4, 6, 6)),
    ("d_stats", zeros(2, 4, 6)),
    ("d_stats", zeros(2, 4, 5, dtype=np.float64)),
    ("d_scores", zeros(2, 4, 5, 6)),
    ("d_scores", zeros(2, 4, 7, 5).swapaxes(2, 3)),
    ("d_scores", zeros(2, 4, 5, 7, dtype=np.float64)),
    ("d_a", zeros(2, 4, 5, 4)),
    ("d_a", zeros(1, 4, 5, 3)),
    ("d_b", zeros(2, 4, 7, 3)),
    ("d_b", zeros(2, 2, 7, 3, dtype=np.float64)),
    ("d_weight", zeros(2, 4, 4)),
    ("d_key_bias", zeros(2, 2, 8)),
    ("d_bias", zeros(1, 4, 5, 8)),
    ("d_bias", zeros(2, 4, 5, 7)),
    ("d_value", zeros(2, 2, 7, 5)),
    ("d_value", zeros(2, 2, 6, 7).swapaxes(2, 3)),
]


@pytest.mark.sanitize
@pytest.mark.parametrize("wrong", GRADIENTS, ids=name)
def test_wrong_gradients(wrong: tuple[str, Any]) -> None:
    call = made()
    results = forward(call)
    to: dict[str, Any] = {"d_output": call.d_output, "d_stats": d_stats(call), "d_scores": None}
    for operand in ("a", "b", "weight", "key_bias", "value", "bias"):
        to[f"d_{operand}"] = zeros(*getattr(call, operand).shape)
    to |= dict([wrong])
    upstream, gradients = tuple(to.values())[:3], (*tuple(to.values())[3:], None)
    with pytest.raises((ValueError, TypeError), match=rf"\b{wrong[0]}\b"):
        core.backward(
            call.operands(), call.pair, call.numbers, (results["output"], results["stats"], None),
            upstream, gradients, 1,
        )  # fmt: skip


@pytest.mark.parametrize("threads", [0, -5, 10_000])
def test_any_number_of_threads(threads: int) -> None:
    """A number of threads of 0, below 0 or above the processors' gives the same bits."""
    call = made()
    assert same(run_call(call), run_call(call, threads=threads))
