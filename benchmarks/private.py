"""The private names of the Triton kernels that a benchmark on a GPU uses; all of them are here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from anyscore.call.operands import Operands, Settings
from benchmarks.work import Work


def tiles(work: Work) -> dict[str, float]:
    """The share of the tiles of a forward that is computed in each way of tanh.

    Empty for other scores, and without Triton.
    """
    if work.score != "additive" or work.device != "cuda":
        return {}
    try:
        scores: Any = importlib.import_module("anyscore.kernels.triton.scores")
        packed: Any = importlib.import_module("anyscore.kernels.triton.call")
        pairs: Any = importlib.import_module("anyscore.kernels.triton.pairs")
    except ImportError:
        return {}
    lead = tuple(work.query.shape[:1])
    x = Operands(work.query, work.key, work.weight)
    s = Settings("tanh", 1.0, 1, 0.0, 1, lead)
    call = packed.PackedCall(pairs.TANH, packed.Inputs(x, s), torch.float32)
    a, b = call.of_queries.bounds[:, :, None], call.of_keys.bounds[:, None]
    free = a[..., 0] + b[..., 0] <= scores.FREE.value
    near = ~free & (b[..., 1] <= scores.WIDE.value) & a[..., 0].isfinite()
    shares = {"free": free, "clamped": near, "one by one": ~(free | near)}
    return {name: float(share.float().mean()) for name, share in shares.items()}


KERNELS = {
    ("weights_and_gradients", 1): "backward: scores, weights and their gradients",
    ("feature_sums", 1): "backward: sums for the query, and for w if there is one",
    ("matrix_sums", 2): "backward: sums for the query, and for w if there is one",
    ("feature_sums", 2): "backward: sums for the key",
    ("matrix_sums", 3): "backward: sums for the key",
    ("matrix_sums", 1): "backward: sums for the value",
}
"""A kernel and its place among launches of the same kernel in a row → its name in tables."""
FORWARD, REST = "forward, all", "the rest: forward, panels and copies"
_PACKAGE = "anyscore.kernels.triton"


def kernel_times(
    call: Callable[[], Any], training: bool, mark: Callable[[], Any], since: Callable[..., float]
) -> dict[str, float]:
    """Return the milliseconds of the kernels of a call, by name, in the order of launches.

    mark: () → a mark of the present time on the device. since: two marks → milliseconds, after all
    kernels have ended.

    Raises LookupError: there are no Triton kernels, or the call launched none.
    """
    marks: list[tuple[str, Any, Any]] = []
    with _watched(mark, marks):
        call()
    if not marks:
        raise LookupError("the call launched no kernels of anyscore")
    found: dict[str, float] = {}
    last, place = "", 0
    for name, begin, end in marks:
        last, place = name, place + 1 if name == last else 1
        label = KERNELS.get((name, place), REST) if training else FORWARD
        found[label] = found.get(label, 0.0) + since(begin, end)
    return found


@contextmanager
def _watched(mark: Callable[[], Any], marks: list[tuple[str, Any, Any]]) -> Iterator[None]:
    """Put marks around each launch, by the modules' `launch`."""
    if (home := sys.modules.get(f"{_PACKAGE}.call")) is None:
        raise LookupError("no Triton kernels have run")
    launch = home.launch

    def watched(kernel: Any, *args: Any, **options: Any) -> None:
        begin = mark()
        launch(kernel, *args, **options)
        marks.append((str(kernel.fn.__name__), begin, mark()))

    users = [
        module
        for name, module in sys.modules.items()
        if name.startswith(_PACKAGE) and getattr(module, "launch", None) is launch
    ]
    for module in users:
        module.launch = watched  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in users:
            module.launch = launch  # type: ignore[attr-defined]
