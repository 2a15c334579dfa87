"""Small layers of PyTorch beside plain modules: `python -m benchmarks.small_layers`.

Decoders and small models call attention on few tokens, where Python takes most of the time. Each
pair runs in turns; the table has medians of the ratio of their times. Parity is checked first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anyscore.torch import Attention, MultiHeadAttention

TURN, ROUNDS = 0.02, 15
"""Seconds of a turn; turns of each."""


class PlainAdditive(nn.Module):
    """Additive attention of plain modules, as textbooks have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.W_q = nn.Linear(width, width, bias=False)
        self.W_k = nn.Linear(width, width, bias=False)
        self.w_v = nn.Linear(width, 1, bias=False)
        self.dropout = nn.Dropout(0.0)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, lengths: Tensor | None
    ) -> Tensor:
        """Return softmax(w · tanh(W_q q + W_k k)) · values, over the first keys alone."""
        queries, keys = self.W_q(queries), self.W_k(keys)
        scores = self.w_v(torch.tanh(queries[:, :, None] + keys[:, None])).squeeze(-1)
        if lengths is not None:
            attended = torch.arange(keys.shape[1]) < lengths[:, None, None]
            scores = scores.masked_fill(~attended, -1e6)
        self.attention_weights = torch.softmax(scores, -1)
        return torch.bmm(self.dropout(self.attention_weights), values)


def additive(batch: int, queries: int, keys: int, width: int, has_lengths: bool) -> tuple[Any, ...]:
    """Return (layer, plain module, tensors) of additive attention."""
    layer, plain = Attention("additive", hidden=width, d_q=width, d_k=width), PlainAdditive(width)
    plain.load_state_dict(layer.state_dict())
    tensors = [torch.randn(batch, n, width) for n in (queries, keys, keys)]
    lengths = torch.full((batch,), keys - 1) if has_lengths else None
    return layer, plain, tensors, lambda module: module(*tensors, lengths)


def heads(batch: int, tokens: int, width: int) -> tuple[Any, ...]:
    """Return (layer, torch.nn.MultiheadAttention, tensors) of self-attention in four heads."""
    layer, plain = MultiHeadAttention(width, 4), nn.MultiheadAttention(width, 4, batch_first=True)
    layer.load_state_dict(plain.state_dict())
    x = torch.randn(batch, tokens, width)

    def call(module: Any) -> Tensor:
        found = module(x, x, x, need_weights=False)
        output: Tensor = found[0] if isinstance(found, tuple) else found
        return output

    return layer, plain, [x], call


def cases() -> Iterator[tuple[str, Any]]:
    """Yield (title, (layer, plain module, tensors, call))."""
    for queries in (1, 10):
        for has_lengths in (False, True):
            title = f"additive, batch 4, {queries} queries, 10 keys, width 16"
            title += ", lengths" if has_lengths else ""
            yield title, additive(4, queries, 10, 16, has_lengths)
    yield "additive, batch 64, 1 query, 50 keys, width 256", additive(64, 1, 50, 256, False)
    yield "four heads, batch 4, 10 tokens, width 16", heads(4, 10, 16)
    yield "four heads, batch 8, 64 tokens, width 64", heads(8, 64, 64)


def ratio(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """Return the median of the ratio of two functions' times, in turns."""
    for _ in range(20):
        one(), other()
    began = time.perf_counter()
    one(), other()
    calls = max(1, int(TURN / (time.perf_counter() - began)))
    ratios = []
    for _ in range(ROUNDS):
        times = []
        for function in (one, other):
            began = time.perf_counter()
            for _ in range(calls):
                function()
            times.append(time.perf_counter() - began)
        ratios.append(times[0] / times[1])
    return statistics.median(ratios)


def infer(call: Callable[[Any], Tensor], module: nn.Module) -> None:
    """Call a module without gradients."""
    with torch.no_grad():
        call(module)


def train(call: Callable[[Any], Tensor], module: nn.Module) -> None:
    """Call a module, and compute all gradients."""
    call(module).sum().backward()  # type: ignore[no-untyped-call]


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(options.parse_args().threads)
    torch.manual_seed(0)
    print(f"{'anyscore ÷ plain modules':60s} inference  training")
    for title, (layer, plain, tensors, call) in cases():
        torch.testing.assert_close(call(layer), call(plain), rtol=1e-4, atol=1e-5)

        found = []
        for mode, run in ((False, infer), (True, train)):
            for module in (layer, plain):
                module.train(mode)
            for x in tensors:
                x.requires_grad_(mode)
            found.append(ratio(partial(run, call, layer), partial(run, call, plain)))
        print(f"{title:60s} {found[0]:9.2f} {found[1]:9.2f}", flush=True)


if __name__ == "__main__":
    main()
