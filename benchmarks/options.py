"""The cost of options in PyTorch on a CPU: `python -m benchmarks.options`.

Pairs from formulas, biases and sparse normalizers. Calls take turns; the table
has medians. On one thread times are the processor's, so that other programs hardly count. All but
biases are first compared with another implementation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyscore import ALiBi, Relative, Score, attention
from anyscore.backends.torch.sparse import sparse_weights
from anyscore.lab.bench.timing import spread
from anyscore.modifiers.normalizers import POWERS
from anyscore.score import LEAKY_RELU, Factors, Pair
from benchmarks.record import Row, row, script_options, write_script
from benchmarks.tasks import TASKS

Call = Callable[[], Tensor]

ROUNDS, LENGTH = 7, 512
FORMULAS = (
    "where(a + b > 0, a + b, 0.2*(a + b))",
    "maximum(a + b, 0.2*(a + b))",
    "1/(1 + (a - b)**2)",
    "(a + b)*sigmoid(a + b)",
    "cos(a - b)",
    "log(1 + exp(a + b))",
    "(a + b)*(1 + erf((a + b)/sqrt(2)))/2",
)


@dataclass(frozen=True, eq=False)
class Own(Score):
    """s = Σ_d w_d pair(q_d, k_d), w (d,)."""

    w: Any
    pair: Any

    def lower(self, xp: Any, query: Any, key: Any) -> Factors:
        """Return the factors."""
        return Factors(query, key, self.pair, weight=self.w)


def pairs() -> tuple[dict[str, Call], list[Tensor]]:
    """Return calls of a built-in pair and of formulas, and their tensors."""
    query, key, value, w = tensors((4, LENGTH, 128), (4, LENGTH, 128), (4, LENGTH, 128), (128,))
    scores = {"leaky_relu, built in": Own(w, LEAKY_RELU)}
    scores |= {f"`{text}`": Own(w, Pair.from_formula(text, text)) for text in FORMULAS}
    calls: dict[str, Call] = {
        name: partial(attention, query, key, value, score=x) for name, x in scores.items()
    }
    torch.testing.assert_close(*(calls[name]() for name in list(calls)[:2]), rtol=1e-4, atol=1e-5)
    return calls, [query, key, value, w]


def biases() -> tuple[dict[str, Call], list[Tensor]]:
    """Return the call without a bias, and calls with one."""
    size = 4, 8, LENGTH, 64
    matrix = 8, LENGTH, LENGTH
    query, key, value, table, shared, own = tensors(size, size, size, (8, 32), matrix, (4, *matrix))
    given = {
        "none": None,
        '`Relative(table, "t5")`': Relative(table, "t5"),
        "`ALiBi()`": ALiBi(),
        "a tensor (heads, T_q, T_k)": shared,
        "a tensor (batch, heads, T_q, T_k)": own,
    }
    calls: dict[str, Call] = {
        name: partial(attention, query, key, value, bias=bias, impl="fused")
        for name, bias in given.items()
    }
    return calls, [query, key, value, table, shared, own]


def normalizers(name: str, power: int) -> tuple[dict[str, Call], list[Tensor]]:
    """Return the product of sparse weights and values, with weights of the core, and by sorting."""
    scores, value = leaves = tensors((8, LENGTH, LENGTH), (8, LENGTH, 64))
    calls: dict[str, Call] = {
        "anyscore": lambda: sparse_weights(scores, power) @ value,
        "sorting": partial(TASKS[name].plain, scores, value),
    }
    torch.testing.assert_close(*(call() for call in calls.values()), rtol=1e-4, atol=1e-5)
    return calls, leaves


def tensors(*sizes: tuple[int, ...]) -> list[Tensor]:
    """Return normal numbers of each shape."""
    return [torch.randn(size) for size in sizes]


def times(calls: dict[str, Call], leaves: list[Tensor]) -> dict[str, list[list[float]]]:
    """Return the milliseconds of each call in turns, without and with gradients."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    found: dict[str, list[list[float]]] = {name: [[], []] for name in calls}
    upstream = {name: torch.randn_like(call()) for name, call in calls.items()}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            for place, backward in enumerate((False, True)):
                for x in leaves:
                    x.requires_grad_(backward)
                    x.grad = None
                began = clock()
                output = call()
                if backward:
                    output.backward(upstream[name])  # type: ignore[no-untyped-call]
                found[name][place].append(1e3 * (clock() - began))
    return found


def rows() -> Iterator[Row]:
    """Yield the rows of a record."""
    modes = "forward", "with gradients"
    for name, both in times(*pairs()).items():
        for mode, ms in zip(modes, both, strict=True):
            yield row("pairs", name, "float32", f"{mode}: ms", spread(ms))
    found = times(*biases())
    for name, both in found.items():
        for mode, ms, base in zip(modes, both, found["none"], strict=True):
            if name != "none":
                ratios = [x / y for x, y in zip(ms, base, strict=True)]
                quantity = f"{mode}: time ÷ time without a bias"
                yield row("biases", name, "float32", quantity, spread(ratios))
    for name, power in POWERS.items():
        found = times(*normalizers(name, power))
        for mode, ms, base in zip(modes, found["sorting"], found["anyscore"], strict=True):
            ratios = [x / y for x, y in zip(ms, base, strict=True)]
            quantity = f"{mode}: sorting in PyTorch ÷ anyscore"
            yield row("sparse normalizers", f"`{name}`", "float32", quantity, spread(ratios))


def main() -> None:
    """Print the rows, and write them with --record."""
    given = script_options(__doc__)
    found = []
    for one in rows():
        found.append(one)
        print(
            one["workload"],
            one["variant"],
            one["quantity"],
            one["median"],
            one["spread"],
            sep=" | ",
        )
    write_script(given, "benchmarks.options", found)


if __name__ == "__main__":
    main()
