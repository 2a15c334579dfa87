"""Precision in other dtypes, NaN of other ranks, the same bits twice, and shards themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helpers import ranks_calls
from helpers.ranks import Ranks

pytestmark = pytest.mark.sample

Group = Callable[[int], Ranks]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scheme", ["ring", "stay"])
def test_error_is_at_most_twice_that_of_one_process(group: Group, scheme: str, dtype: str) -> None:
    for ratios in group(3).run(ranks_calls.error_ratios, scheme, dtype):
        assert not {name: x for name, x in ratios.items() if not x <= 2}


def test_nan_in_masked_keys_of_another_rank(group: Group) -> None:
    for found in group(3).run(ranks_calls.with_nan_in_padding):
        assert found == {"output": 0.0, "W_q": 0.0, "W_k": 0.0, "w": 0.0}


@pytest.mark.parametrize("scheme", ["ring", "stay", "gather"])
def test_same_bits_twice(group: Group, scheme: str) -> None:
    assert all(group(3).run(ranks_calls.same_bits_twice, scheme))


@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "uneven", "empty ranks"])
def test_shards_and_positions(group: Group, layout: str) -> None:
    assert all(group(3).run(ranks_calls.shards_and_positions, layout))


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "empty ranks"])
@pytest.mark.parametrize("scheme", ["ring", "stay", "gather"])
def test_dropout_drops_the_entries_of_one_process(
    group: Group, scheme: str, layout: str, impl: str
) -> None:
    ranks = 3 if layout == "contiguous" else 2  # pieces of 12, 8 and 36 tokens
    for error in group(ranks).run(ranks_calls.dropout_error, scheme, layout, impl):
        assert error <= 1e-12


def test_ranks_draw_one_seed(group: Group) -> None:
    one, other = group(2).run(ranks_calls.drawn_seeds)
    assert one.equal(other)
    assert 0.3 < (one == 0).double().mean() < 0.7


def test_log_sum_exp(group: Group) -> None:
    for error in group(3).run(ranks_calls.log_sum_exp_error):
        assert error <= 1e-12


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("ring", "keys pass around a ring of 2 ranks"),
        ("stay", "keys stay on 2 ranks, and sums join their results"),
        ("gather", "queries of 2 ranks are gathered, keys stay, and sums join their results"),
    ],
)
def test_plan_names_the_scheme(group: Group, scheme: str, words: str) -> None:
    for route, reason in group(2).run(ranks_calls.planned, scheme):
        assert route == "cpu"
        assert words in reason


def test_plan_of_one_rank_alone_waits_for_no_other(group: Group) -> None:
    assert group(2).run(ranks_calls.planned_on_rank_0)[0]


def test_rows_of_a_bias_are_those_of_the_rank(group: Group) -> None:
    for error in group(3).run(ranks_calls.array_bias_error):
        assert error <= 1e-12


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_one_token_in_each_piece(group: Group, impl: str) -> None:
    for error in group(2).run(ranks_calls.one_token_error, impl):
        assert error <= 1e-12


def test_a_bias_of_keys_and_a_mask_of_queries(group: Group) -> None:
    for error in group(2).run(ranks_calls.flat_bias_error):
        assert error <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("fully_sharded", [False, True], ids=["replicated", "fully sharded"])
def test_checkpointing_and_data_parallel_models(group: Group, fully_sharded: bool) -> None:
    for error in group(2).run(ranks_calls.checkpointed_in_data_parallel_error, fully_sharded):
        assert error <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "layout", "ranks"),
    [
        ("ring", "zigzag", 2),
        pytest.param("ring", "uneven", 3, marks=pytest.mark.weekly),
        pytest.param("stay", "zigzag", 2, marks=pytest.mark.weekly),
        pytest.param("gather", "zigzag", 2, marks=pytest.mark.weekly),
    ],
)
def test_one_graph_of_the_compiler(group: Group, scheme: str, layout: str, ranks: int) -> None:
    for error in group(ranks).run(ranks_calls.compiled_error, scheme, layout):
        assert error <= 1e-12
