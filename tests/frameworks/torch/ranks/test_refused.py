"""Calls that differ between ranks, and calls that ranks cannot share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helpers import ranks_calls
from helpers.ranks import Ranks

pytestmark = pytest.mark.sample

Group = Callable[[int], Ranks]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("dtype", "query differs between ranks: float64"),
        ("width", "query differs between ranks"),
        ("score", "score differs between ranks: Laplace(sigma=2.0) on rank 0, and Gaussian"),
        ("number", "Laplace(sigma=2.0) on rank 0, and Laplace(sigma=3.0) on rank 2"),
        ("mask", "mask differs between ranks: Causal"),
        ("layout", "layout differs between ranks"),
        ("softcap", "softcap differs between ranks: 0.0 on rank 0, and 3.0 on rank 2"),
        ("gradients", "gradients differs between ranks: False on rank 0, and True on rank 2"),
        ("bias", "bias differs between ranks: None on rank 0, and ALiBi"),
    ],
)  # fmt: skip
def test_a_difference_is_said_on_every_rank(group: Group, what: str, words: str) -> None:
    for message in group(3).run(ranks_calls.different, what):
        assert words in message


def test_an_error_of_one_rank_is_said_on_every_rank(group: Group) -> None:
    messages = group(3).run(ranks_calls.different, "tokens")
    assert "key has 12 tokens but value has 11" in messages[2]
    for message in messages[:2]:
        assert message.startswith("rank 2 of 3 refuses the call, and so does this rank: key has 12")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("sparsemax", "across does not take normalizer='sparsemax'"),
        ("weights", "across does not take the matrix of scores or weights"),
        ("edges", "across does not take the edges of a graph"),
        ("separable", 'across does not take impl="separable"'),
        ("dropout", "pieces of keys that begin at multiples of 4, and one begins at 6"),
        ("callable", "across does not take this call, since the score is a callable"),
        ("second derivative", "attention across ranks has no second derivatives"),
        ("count", "query has 11 tokens on rank"),
        (
            "bias of all queries",
            "bias has shape (24, 24), expected 1 or 12 rows, those of this rank",
        ),
        ("another bias", "bias_after has shape (13, 24), expected 1 or 12 rows"),
        ("across", "across must be a layout such as Contiguous(mesh), or the name"),
        ("over", "a layout is over 'cp', expected a DeviceMesh of one dimension"),
        ("heads", "a layer with projections does not take across=(None, layout)"),
        ("self", "a layer with projections does not take across=(None, layout)"),
        ("numpy", "across is for PyTorch and JAX"),
        ("lengths", "lengths has 1 entries, expected one for each of 2 ranks"),
        ("DTensor", "query is a DTensor, and its mask is not: pass x.to_local()"),
    ],
)
def test_refused_on_every_rank(group: Group, what: str, words: str) -> None:
    for message in group(2).run(ranks_calls.refused, what):
        assert words in message


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.weekly if n > 1 else []) for n in range(30)]
)
def test_sizes_that_are_not_of_the_rank(group: Group, seed: int) -> None:
    for wrong in group(2).run(ranks_calls.drawn_sizes, seed):
        assert not wrong


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("tokens", "layout differs between ranks"),
        ("batch", "queries differs between ranks: float32 (2, 1, tokens, 12) on rank 0"),
        ("valid_lens", "leading dimensions of the mask differs between ranks"),
        (
            "no mask",
            "mask differs between ranks: Causal(align=None, offset=None) on rank 0, and None on",
        ),
    ],
)
def test_a_layer_that_differs(group: Group, what: str, words: str) -> None:
    for message in group(2).run(ranks_calls.different_in_a_layer, what):
        assert words in message


def test_a_group_works_after_an_error(group: Group) -> None:
    group(2).run(ranks_calls.refused, "sparsemax")
    for errors in group(2).run(
        ranks_calls.compare, "ring", "zigzag", ["laplace"], "causal", "auto"
    ):
        assert errors["laplace"] <= 1e-12


def test_a_destroyed_group(group: Group) -> None:
    """Its threads end, which a layout or a graph must not prevent; a call says so."""
    for lives, message in group(2).run(ranks_calls.left_of_a_destroyed_group):
        assert not lives
        assert "the process group of the layout was destroyed" in message
