"""JAX, and Keras on JAX or PyTorch, where they are installed, in the same process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyscore import Additive, attention
from anyscore.lab.bench.rivals import Call, Unavailable, Variant
from benchmarks.work import Work


def formula(work: Work) -> list[Variant]:
    """The broadcast formula under jax.jit, the sum over features written in two ways."""
    hows = ("w summed", "@ w") if work.formula.learned else ("summed",)
    jit = "" if _is_eager(work) else "jax.jit of "
    return [
        Variant(f"{jit}the formula, {how}", partial(_build, work, how != "@ w"), compiles=True)
        for how in hows
    ]


def anyscore_(work: Work) -> list[Variant]:
    """anyscore on JAX arrays, with projections and lengths."""

    def build() -> Call:
        lengths = None if work.valid_lens is None else _array(work.valid_lens)

        def attend(q: Any, k: Any, v: Any, *rest: Any) -> Any:
            *projections, w = rest
            W_q, W_k = projections or (None, None)
            score = Additive(W_q, W_k, w)
            return attention(q, k, v, score=score, valid_lens=lengths)

        return called(attend, work)

    return [Variant(f"anyscore.attention{'' if _is_eager(work) else ' in jax.jit'}", build)]


def keras_layer(work: Work) -> list[Variant]:
    """AdditiveAttention of Keras 3 on the backend chosen with KERAS_BACKEND, else on JAX."""
    if importlib.util.find_spec("jax") is not None:
        os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = load("keras")
    backend = keras.backend.backend()
    builds = {"jax": _keras_on_jax, "torch": _keras_on_torch}
    if backend not in builds:
        raise Unavailable(
            f"it is measured on JAX or PyTorch, not on {backend}: set KERAS_BACKEND=jax"
        )
    how = f"keras.layers.AdditiveAttention on {backend}"
    return [Variant(how, partial(builds[backend], work), backend == "jax")]


def _is_eager(work: Work) -> bool:
    return work.framework == "jax" and work.call == "eager"


def _build(work: Work, summed: bool) -> Call:
    jax, jnp = load("jax"), load("jax.numpy")
    lengths = None if work.valid_lens is None else _array(work.valid_lens)

    def scores(q: Any, k: Any, w: Any) -> Any:
        difference = q[:, :, None] - k[:, None] if not work.formula.learned else None
        if work.score == "laplace":
            return -w * jnp.abs(difference).sum(-1)
        if work.score == "gaussian":
            return -w * jnp.square(difference).sum(-1)
        x = q[:, :, None] + k[:, None]
        x = jnp.tanh(x) if work.score == "additive" else jnp.where(x > 0, x, 0.2 * x)
        return (x * w).sum(-1) if summed else x @ w

    def attend(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        *projections, w = rest
        if projections:
            q, k = q @ projections[0].T, k @ projections[1].T
        s = scores(q, k, w)
        if lengths is not None:
            s = jnp.where(jnp.arange(k.shape[1]) < lengths[:, None, None], s, -1e6)
        return jax.nn.softmax(s, -1) @ v

    return called(attend, work)


def called(attend: Callable[..., Any], work: Work) -> Call:
    """`attend(*inputs, weight)`, compiled unless eager; with the gradients when training."""
    jax = load("jax")
    inputs = [_array(x) for x in work.inputs.values()]
    fixed = [] if work.formula.learned else [_array(work.weight)]
    upstream = _array(work.upstream)

    def forward(*inputs: Any) -> Any:
        return attend(*inputs, *fixed)

    def both(upstream: Any, *inputs: Any) -> Any:
        output, pull = jax.vjp(forward, *inputs)
        return output, *pull(upstream)

    jit = (lambda f: f) if _is_eager(work) else jax.jit
    if work.training:
        compiled = jit(both)
        return lambda: jax.block_until_ready(compiled(upstream, *inputs))
    call = jit(forward)
    return lambda: (jax.block_until_ready(call(*inputs)),)


def _keras_on_jax(work: Work) -> Call:
    layer = _layer(work)

    def attend(q: Any, k: Any, v: Any, w: Any) -> Any:
        return layer.stateless_call([w], [], [q, v, k])[0]

    return called(attend, work)


def _keras_on_torch(work: Work) -> Call:
    layer = _layer(work)
    query, key, value = (
        x.detach().requires_grad_(work.training) for x in (work.query, work.key, work.value)
    )
    leaves = [query, key, value, layer.scale.value]

    def call() -> Any:
        if not work.training:
            with torch.no_grad():
                return (layer([query, value, key]),)
        output = layer([query, value, key])
        return (output.detach(), *torch.autograd.grad(output, leaves, work.upstream))

    return call


def _layer(work: Work) -> Any:
    layer = load("keras").layers.AdditiveAttention(dtype=work.dtype)
    layer.build([tuple(x.shape) for x in (work.query, work.value, work.key)])
    layer.set_weights([work.weight.float().numpy()])
    return layer


def _array(x: Tensor) -> Any:
    x = x.detach()
    name = str(x.dtype).removeprefix("torch.")
    return load("jax.numpy").asarray((x.float() if x.is_floating_point() else x).numpy(), name)


def load(package: str) -> Any:
    """Import the package; JAX starts its threads at its first use, as many as PyTorch has."""
    if package in sys.modules:
        return sys.modules[package]
    with _own_threads():
        loaded = importlib.import_module(package)
        if importlib.util.find_spec("jax") is not None:
            importlib.import_module("jax").devices()
    return loaded


@contextmanager
def _own_threads() -> Iterator[None]:
    """Give this as many processors as PyTorch has threads: so many threads are then started."""
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[: torch.get_num_threads()])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
