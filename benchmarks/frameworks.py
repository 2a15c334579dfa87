"""Additive attention in one framework against what its user would write today.

    python benchmarks/frameworks.py jax|tensorflow|mxnet|torch [--json FILE]

Two tables: what a small call costs above all (overhead), and a large one, forward and in training.
Results are compared before anything is timed; the contenders take turns, and medians are told.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

SMALL, LARGE = (1, 1, 10, 8, 4), (4, 512, 512, 128, 128)  # batch, queries, keys, hidden, values
SECONDS = 6.0  # for each contender, about

Call = Callable[[], Any]


class Contest(NamedTuple):
    """Ways to the same result, ours first. Each call gives NumPy arrays when `get` is applied."""

    title: str
    ways: dict[str, Call]
    get: Callable[[Any], list[np.ndarray]]


def inputs(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Queries and keys are projected by W_q and W_k (h, h); all lengths differ."""
    batch, queries, keys, hidden, values = shape
    rng = np.random.default_rng(0)

    def normal(*size: int, variance: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(size) * variance**0.5).astype(np.float32)

    return {
        "q": normal(batch, queries, hidden),
        "k": normal(batch, keys, hidden),
        "v": normal(batch, keys, values),
        "n": np.linspace(keys * 0.75, keys, batch).astype(np.int32),
        "W_q": normal(hidden, hidden, variance=0.5 / hidden),
        "W_k": normal(hidden, hidden, variance=0.5 / hidden),
        "w_v": normal(hidden, variance=2.5 / hidden),
    }


def jax_contests(shape: tuple[int, ...]) -> list[Contest]:
    import jax
    import jax.numpy as jnp

    from anyscore import Additive, attention

    x = {name: jnp.asarray(array) for name, array in inputs(shape).items()}
    args, n = [x[name] for name in ("q", "k", "v", "W_q", "W_k", "w_v")], x["n"]

    def ours(q: Any, k: Any, v: Any, *parameters: Any) -> Any:
        return attention(q, k, v, score=Additive(*parameters), valid_lens=n)

    def formula(contract: bool) -> Callable[..., Any]:
        def plain(q: Any, k: Any, v: Any, W_q: Any, W_k: Any, w_v: Any) -> Any:
            t = jnp.tanh((q @ W_q.T)[:, :, None] + (k @ W_k.T)[:, None])
            s = t @ w_v if contract else (t * w_v).sum(-1)
            s = jnp.where(jnp.arange(k.shape[1]) < n[:, None, None], s, -1e6)
            return jax.nn.softmax(s, -1) @ v

        return plain

    ways = {"anyscore": ours, "formula, @ w": formula(True), "formula, w summed": formula(False)}

    def trained(way: Callable[..., Any]) -> Callable[..., Any]:
        total = lambda *args: (way(*args) ** 2).sum()  # noqa: E731
        return jax.jit(jax.grad(total, tuple(range(6))))

    def contest(title: str, made: Callable[[Any], Any]) -> Contest:
        calls = {name: made(way) for name, way in ways.items()}
        run = {name: (lambda f=f: jax.block_until_ready(f(*args))) for name, f in calls.items()}
        return Contest(title, run, lambda found: [np.asarray(y) for y in jax.tree.leaves(found)])

    found = [contest("jax.jit, forward", jax.jit), contest("jax.jit, gradients", trained)]
    return found if shape == LARGE else [contest("eager, forward", lambda way: way), *found]


def tensorflow_contests(shape: tuple[int, ...]) -> list[Contest]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import tensorflow as tf

    import anyscore.keras
    from anyscore import Additive, attention

    x = {name: tf.constant(array) for name, array in inputs(shape).items()}
    q, k, v, n = x["q"], x["k"], x["v"], x["n"]
    names = "q", "k", "v", "W_q", "W_k", "w_v"

    def get(found: Any) -> list[np.ndarray]:
        return [np.asarray(y) for y in tf.nest.flatten(found)]

    if shape == SMALL:

        def ours(*args: Any) -> Any:
            return attention(*args[:3], score=Additive(*args[3:]), valid_lens=n)

        def plain(q: Any, k: Any, v: Any, W_q: Any, W_k: Any, w_v: Any) -> Any:
            a, b = tf.matmul(q, W_q, transpose_b=True), tf.matmul(k, W_k, transpose_b=True)
            t = tf.tanh(a[:, :, None] + b[:, None])
            s = tf.reduce_sum(t * w_v, -1)
            s = tf.where(tf.range(tf.shape(k)[1]) < n[:, None, None], s, -1e6)
            return tf.nn.softmax(s, -1) @ v

        args = [x[name] for name in names]
        ways = {"anyscore": ours, "formula": plain}
        eager = {name: (lambda f=f: f(*args)) for name, f in ways.items()}
        graphs = {name: tf.function(f) for name, f in ways.items()}
        compiled = {name: (lambda f=f: f(*args)) for name, f in graphs.items()}
        return [
            Contest("eager, forward", eager, get),
            Contest("tf.function, forward", compiled, get),
        ]
    # Keras's layer projects nothing, and its `scale` is our w_v: so ours takes what is projected.
    mine = anyscore.keras.Attention("additive", hidden=shape[3], projected=True)
    theirs = keras.layers.AdditiveAttention()
    mask = tf.sequence_mask(n, shape[2])
    theirs([q, v, k])
    theirs.set_weights([np.asarray(x["w_v"])])
    mine(q, k, v)
    mine.load_numpy_parameters({"w_v.weight": np.asarray(x["w_v"])[None]})

    def layer(call: Callable[..., Any], weights: Any, training: bool, **options: Any) -> Call:
        @tf.function(**options)
        def run(q: Any, k: Any, v: Any) -> Any:
            if not training:
                return call(q, k, v)
            with tf.GradientTape() as tape:
                tape.watch([q, k, v])
                loss = tf.reduce_sum(call(q, k, v) ** 2)
            return [tf.reshape(g, (-1,)) for g in tape.gradient(loss, [q, k, v, *weights])]

        return lambda: run(q, k, v)

    def contest(title: str, training: bool) -> Contest:
        def keras_call(q: Any, k: Any, v: Any) -> Any:
            return theirs([q, v, k], mask=[None, mask], training=training)

        def own_call(q: Any, k: Any, v: Any) -> Any:
            return mine(q, k, v, n, training=training)

        ways = {
            "anyscore.keras": layer(own_call, mine.trainable_weights, training),
            "keras AdditiveAttention": layer(keras_call, theirs.trainable_weights, training),
            "keras AdditiveAttention, XLA": layer(
                keras_call, theirs.trainable_weights, training, jit_compile=True
            ),
        }
        return Contest(title, ways, get)

    return [contest("tf.function, forward", False), contest("tf.function, gradients", True)]


def mxnet_contests(shape: tuple[int, ...]) -> list[Contest]:
    import mxnet as mx
    from mxnet import autograd, np, npx

    from anyscore import Additive, attention

    npx.set_np()
    x = {name: np.array(array, dtype=array.dtype) for name, array in inputs(shape).items()}
    args, n = [x[name] for name in ("q", "k", "v", "W_q", "W_k", "w_v")], x["n"]
    for each in args:
        each.attach_grad()

    def ours(*args: Any) -> Any:
        return attention(*args[:3], score=Additive(*args[3:]), valid_lens=n)

    def plain(q: Any, k: Any, v: Any, W_q: Any, W_k: Any, w_v: Any) -> Any:
        """As *Dive into Deep Learning* has it, of the same parameters."""
        a = npx.fully_connected(q, W_q, no_bias=True, flatten=False, num_hidden=shape[3])
        b = npx.fully_connected(k, W_k, no_bias=True, flatten=False, num_hidden=shape[3])
        t = np.tanh(np.expand_dims(a, 2) + np.expand_dims(b, 1))
        s = npx.fully_connected(t, w_v.reshape(1, -1), no_bias=True, flatten=False, num_hidden=1)
        s = s.squeeze(-1)
        lengths = n.repeat(s.shape[1])
        s = npx.sequence_mask(s.reshape(-1, s.shape[-1]), lengths, True, value=-1e6, axis=1)
        return npx.batch_dot(npx.softmax(s).reshape(shape[0], shape[1], -1), v)

    def forward(way: Callable[..., Any]) -> Call:
        def run() -> Any:
            found = way(*args)
            mx.nd.waitall()
            return [found]

        return run

    def training(way: Callable[..., Any]) -> Call:
        def run() -> Any:
            with autograd.record():
                loss = (way(*args) ** 2).sum()
            loss.backward()
            mx.nd.waitall()
            return [each.grad for each in args]

        return run

    ways = {"anyscore": ours, "formula": plain}

    def contest(title: str, made: Callable[[Any], Call]) -> Contest:
        return Contest(
            title, {a: made(b) for a, b in ways.items()}, lambda xs: [y.asnumpy() for y in xs]
        )

    return [contest("forward", forward), contest("forward and backward", training)]


def torch_contests(shape: tuple[int, ...]) -> list[Contest]:
    import torch

    from anyscore import Additive, attention

    x = {name: torch.from_numpy(array) for name, array in inputs(shape).items()}
    args, n = [x[name].requires_grad_() for name in ("q", "k", "v", "W_q", "W_k", "w_v")], x["n"]

    def ours(*args: Any) -> Any:
        return attention(*args[:3], score=Additive(*args[3:]), valid_lens=n)

    def plain(q: Any, k: Any, v: Any, W_q: Any, W_k: Any, w_v: Any) -> Any:
        s = torch.tanh((q @ W_q.T)[:, :, None] + (k @ W_k.T)[:, None]) @ w_v
        s = torch.where(torch.arange(k.shape[1]) < n[:, None, None], s, -1e6)
        return torch.softmax(s, -1) @ v

    def forward(way: Callable[..., Any]) -> Call:
        def run() -> Any:
            with torch.no_grad():
                return [way(*args)]

        return run

    def training(way: Callable[..., Any]) -> Call:
        return lambda: torch.autograd.grad((way(*args) ** 2).sum(), args)

    ways = {"anyscore": ours, "formula": plain}

    def contest(title: str, made: Callable[[Any], Call]) -> Contest:
        calls = {name: made(way) for name, way in ways.items()}
        return Contest(title, calls, lambda xs: [y.detach().numpy() for y in xs])

    return [contest("eager, forward", forward), contest("eager, gradients", training)]


def same(contest: Contest) -> dict[str, float]:
    """The largest difference of each way from the first, as a share of the largest entry."""
    found = {name: contest.get(call()) for name, call in contest.ways.items()}
    first = next(iter(found.values()))
    errors = {}
    for name, arrays in found.items():
        assert len(arrays) == len(first), name
        off = (
            abs(x.ravel() - y.ravel()).max() / abs(y).max()
            for x, y in zip(arrays, first, strict=True)
        )
        errors[name] = float(max(off))
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] < 1e-3, f"{contest.title}: {worst} is off by {errors[worst]:.2g}"
    return errors


def medians(contest: Contest) -> dict[str, float]:
    """Seconds of one call, the contenders taking turns."""
    repeats, times = {}, {name: [] for name in contest.ways}
    for name, call in contest.ways.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(0.01 / (time.perf_counter() - start)))
    end = time.perf_counter() + SECONDS * len(times)
    while time.perf_counter() < end or len(next(iter(times.values()))) < 3:
        for name, call in contest.ways.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return {name: statistics.median(found) for name, found in times.items()}


CONTESTS = {
    "jax": jax_contests,
    "tensorflow": tensorflow_contests,
    "mxnet": mxnet_contests,
    "torch": torch_contests,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=CONTESTS)
    parser.add_argument("--json", help="also write what was measured to this file")
    asked = parser.parse_args()
    rows = []
    print("| shape | call | way | time ÷ ours | ours |\n|---|---|---|---|---|")
    for shape in (SMALL, LARGE):
        for contest in CONTESTS[asked.framework](shape):
            errors, times = same(contest), medians(contest)
            ours = next(iter(times.values()))
            for name, seconds in list(times.items())[1:]:
                row = {"shape": shape, "call": contest.title, "way": name, "error": errors[name]}
                rows.append(row | {"seconds": seconds, "ours": ours})
                sizes = ", ".join(map(str, shape))
                ratio = f"{seconds / ours:.3g}"
                print(
                    f"| {sizes} | {contest.title} | {name} | {ratio} | {1e6 * ours:.0f} µs |",
                    flush=True,
                )
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump({"framework": asked.framework, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
