"""Small layers of PyTorch beside plain modules: `python -m benchmarks.small_layers`.

Decoders and small models call attention on few tokens, where Python takes most of the time. Each
pair runs in turns; the table has medians of the ratio of their times. Parity is checked first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from anyscore import Additive, make_cache
from anyscore.lab.bench.timing import spread
from anyscore.torch import Attention, LocationSensitive, MultiHeadAttention, Pointer
from benchmarks.record import row, script_options, write_script
from benchmarks.speech import AttLoc

Step: TypeAlias = tuple[Callable[[], Tensor], Callable[[], Tensor]]
"""A step of anyscore, and of plain modules."""

TURN, ROUNDS = 0.02, 15
"""Seconds of a turn; turns of each."""
UNIT = "anyscore ÷ plain modules"


class PlainScore(nn.Module):
    """The parameters of an additive score: W_q, W_k and w_v."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.W_q = nn.Linear(width, width, bias=False)
        self.W_k = nn.Linear(width, width, bias=False)
        self.w_v = nn.Linear(width, 1, bias=False)


class PlainAdditive(PlainScore):
    """Additive attention of plain modules, as textbooks have it."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__(width)
        self.dropout = nn.Dropout(dropout)

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


class PlainPointer(PlainScore):
    """A pointer of plain modules: log softmax_j C · tanh(w · tanh(W_q q + W_k k_j))."""

    def forward(self, query: Tensor, projected: Tensor, left: Tensor) -> Tensor:
        """Return log-probabilities of projected keys, −∞ where none is left."""
        scores = self.w_v(torch.tanh(self.W_q(query)[:, None] + projected)).squeeze(-1)
        return torch.log_softmax((10 * torch.tanh(scores)).masked_fill(~left, -torch.inf), -1)


def additive(
    batch: int, queries: int, keys: int, width: int, has_lengths: bool, dropout: float = 0.0
) -> tuple[Any, ...]:
    """Return (layer, plain module, tensors, call) of additive attention."""
    layer = Attention("additive", hidden=width, d_q=width, d_k=width, dropout=dropout)
    plain = PlainAdditive(width, dropout)
    plain.load_state_dict(layer.state_dict())
    tensors = [torch.randn(batch, n, width) for n in (queries, keys, keys)]
    lengths = torch.full((batch,), keys - 1) if has_lengths else None
    return layer, plain, tensors, lambda module: module(*tensors, lengths)


def heads(batch: int, tokens: int, width: int) -> tuple[Any, ...]:
    """Return (layer, torch.nn.MultiheadAttention, tensors, call) of four heads."""
    layer, plain = MultiHeadAttention(width, 4), nn.MultiheadAttention(width, 4, batch_first=True)
    layer.load_state_dict(plain.state_dict())
    x = torch.randn(batch, tokens, width)

    def call(module: Any) -> Tensor:
        found = module(x, x, x, need_weights=False)
        output: Tensor = found[0] if isinstance(found, tuple) else found
        return output

    return layer, plain, [x], call


def pointer(batch: int, keys: int, width: int) -> Step:
    """Return one step of `Pointer`, and of the plain one, over prepared keys."""
    layer, plain = Pointer("additive", 0, hidden=width, d_q=width, d_k=width), PlainPointer(width)
    plain.load_state_dict(layer.pointing.state_dict())
    query, of_keys = torch.randn(batch, width), torch.randn(batch, keys, width)
    left = torch.arange(keys).expand(batch, keys) > 2
    prepared, projected = layer.prepare_keys(of_keys), plain.W_k(of_keys)
    return lambda: layer(query, prepared, left), lambda: plain(query, projected, left)


def location(batch: int, keys: int, width: int) -> Step:
    """Return one step of `LocationSensitive`, and of ESPnet's formula, over prepared keys."""
    options: dict[str, Any] = {"filters": 4, "kernel": 15, "bias": True, "scale": 2.0}
    layer, plain = (
        LocationSensitive(width, width, width, **options),
        AttLoc(width, width, width, 4, 15),
    )
    layer.load_state_dict(dict(plain.state_dict()))
    query, of_keys = torch.randn(batch, width), torch.randn(batch, keys, width)
    plain.start(of_keys, torch.full((batch,), keys))
    first = plain.last
    state = layer.start(of_keys)._replace(weights=first)

    def step_of_plain() -> Tensor:
        plain.last = first
        output: Tensor = plain.step(query)[0]
        return output

    return lambda: layer.step(query, state)[0], step_of_plain


def cache(batch: int, keys: int, width: int) -> Step:
    """Return one step of four heads of additive attention over a cache, and its plain formula."""
    query, key, value = (torch.randn(batch, 4, n, width) for n in (1, keys, keys))
    weight = torch.randn(width)
    score = Additive(None, None, weight)
    known = make_cache(key, value, score, capacity=keys)

    def plain() -> Tensor:
        return torch.softmax(torch.tanh(query[..., None, :] + key[:, :, None]) @ weight, -1) @ value

    return lambda: known.attend(query, score=score), plain


STEPS: dict[str, Callable[[int, int, int], Step]] = {
    "additive cache of four heads": cache,
    "pointer": pointer,
    "location-sensitive": location,
}
"""Steps of decoders, measured without gradients."""


def cases() -> Iterator[tuple[str, Any]]:
    """Yield (title, (layer, plain module, tensors, call))."""
    for queries in (1, 10):
        for has_lengths in (False, True):
            title = f"additive, batch 4, {queries} queries, 10 keys, width 16"
            title += ", lengths" if has_lengths else ""
            yield title, additive(4, queries, 10, 16, has_lengths)
            yield f"{title}, dropout", additive(4, queries, 10, 16, has_lengths, 0.1)
    yield "additive, batch 64, 1 query, 50 keys, width 256", additive(64, 1, 50, 256, False)
    yield "four heads, batch 4, 10 tokens, width 16", heads(4, 10, 16)
    yield "four heads, batch 8, 64 tokens, width 64", heads(8, 64, 64)


def ratio(
    one: Callable[[], Any], other: Callable[[], Any], rounds: int = ROUNDS, warm: int = 20
) -> dict[str, float]:
    """Return the median and quartiles of the ratio of two functions' times, in turns.

    warm: calls of each before the first turn.
    """
    for _ in range(warm):
        one(), other()
    began = time.perf_counter()
    one(), other()
    calls = max(1, int(TURN / (time.perf_counter() - began)))
    ratios = []
    for _ in range(rounds):
        times = []
        for function in (one, other):
            began = time.perf_counter()
            for _ in range(calls):
                function()
            times.append(time.perf_counter() - began)
        ratios.append(times[0] / times[1])
    return spread(ratios)


def infer(call: Callable[[Any], Tensor], module: nn.Module) -> None:
    """Call a module without gradients."""
    with torch.no_grad():
        call(module)


def train(call: Callable[[Any], Tensor], module: nn.Module) -> None:
    """Call a module, and compute all gradients."""
    call(module).sum().backward()  # type: ignore[no-untyped-call]


def main() -> None:
    """Print the table."""
    given = script_options(__doc__)
    rows = []
    print(f"{'anyscore ÷ plain modules':60s} inference  training")
    for title, (layer, plain, tensors, call) in cases():
        layer.eval(), plain.eval()  # without dropout
        torch.testing.assert_close(call(layer), call(plain), rtol=1e-4, atol=1e-5)
        found = []
        for mode, run in ((False, infer), (True, train)):
            for module in (layer, plain):
                module.train(mode)
            for x in tensors:
                x.requires_grad_(mode)
            found.append(ratio(partial(run, call, layer), partial(run, call, plain)))
        print(f"{title:60s} {found[0]['median']:9.2f} {found[1]['median']:9.2f}", flush=True)
        variant, dropped, _ = title.partition(", dropout")
        for mode_name, x in zip(("inference", "training"), found, strict=True):
            if mode_name == "training" or not dropped:  # inference drops nothing
                quantity = f"{mode_name}{' with dropout' * bool(dropped)}: {UNIT}"
                rows.append(row("small layers", variant, "float32", quantity, x))
    with torch.no_grad():
        for name, make in STEPS.items():
            for sizes in ((1, 20, 16), (4, 50, 64), (16, 200, 256)):
                step, plain_step = make(*sizes)
                torch.testing.assert_close(step(), plain_step(), rtol=1e-4, atol=1e-4)
                title = "{}: a step, batch {}, {} keys, width {}".format(name, *sizes)
                x = ratio(step, plain_step)
                print(f"{title:60s} {x['median']:9.2f}", flush=True)
                size = "batch {}, {} keys, width {}".format(*sizes)
                rows.append(row(size, name, "float32", f"steps: {UNIT}", x))
    write_script(given, "benchmarks.small_layers", rows)


if __name__ == "__main__":
    main()
