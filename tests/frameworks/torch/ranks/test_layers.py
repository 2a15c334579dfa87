"""Layers across ranks, and the scripts of the documentation's page."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import ranks_calls
from helpers.by_pair import also_weekly
from helpers.hang import HANG
from helpers.ranks import Ranks

Group = Callable[[int], Ranks]
PAGE = Path(__file__).parents[4] / "docs" / "ranks.md"
SCRIPTS = re.findall(r"<!-- a script of ranks -->\n```py\n(.*?)```", PAGE.read_text("utf-8"), re.S)


@pytest.mark.parametrize("scheme", ["ring", "stay", "gather"])
def test_a_layer_has_the_gradients_of_one_process(group: Group, scheme: str) -> None:
    for error in group(2).run(ranks_calls.layer_error, scheme):
        assert error <= 1e-12


def test_layers_with_projections(group: Group) -> None:
    """NaN in padding, also of another rank, reaches no parameter."""
    for error in group(3).run(ranks_calls.multi_head_error):
        assert error <= 1e-12


def test_a_layer_has_no_weights(group: Group) -> None:
    assert not any(group(2).run(ranks_calls.has_weights))


@pytest.mark.parametrize("ranks", [4, *also_weekly(1)])
@pytest.mark.parametrize(
    ("script", "words"),
    [(0, "the error is below 1e-5: True"), (1, "Equal to one process: True")],
)
def test_scripts_of_the_page(tmp_path: Path, script: int, words: str, ranks: int) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPTS[script], "utf-8")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    made = subprocess.run(
        [*run, f"--nproc-per-node={ranks}", str(file)],
        capture_output=True, text=True, timeout=HANG, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert made.stdout.count(words) == ranks
    assert made.stdout.count("sum to 1: True") == ranks * script


@pytest.mark.parametrize("score", ["scaled_dot", "dot", "gaussian", "additive"])
def test_tensor_parallel_projections(group: Group, score: str) -> None:
    """`parallelize_module` gives each rank some heads; a parameter for each head is refused."""
    for error in group(2).run(ranks_calls.parallel_projections_error, score):
        if score in ("scaled_dot", "dot"):
            assert error <= 1e-12
        else:
            assert "leading dimensions (4,) do not broadcast to (2, 2)" in error
