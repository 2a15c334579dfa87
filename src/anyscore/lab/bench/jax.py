"""JAX and Keras, where they are installed: they take part in the same process."""

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

from anyscore.lab.bench.rival import Call, Unavailable, Way
from anyscore.lab.bench.work import Work


def formula(work: Work) -> list[Way]:
    """jax.jit of the broadcast formula, the sum over features written in two ways."""
    hows = ("w summed", "@ w") if work.formula.learned else ("summed",)
    return [
        Way(f"jax.jit of the formula, {how}", partial(_build, work, how != "@ w"), compiles=True)
        for how in hows
    ]


def keras_layer(work: Work) -> list[Way]:
    """AdditiveAttention of Keras 3 on the backend chosen with KERAS_BACKEND, else on JAX."""
    if importlib.util.find_spec("jax") is not None:
        os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = _load("keras")
    backend = keras.backend.backend()
    builds = {"jax": _keras_on_jax, "torch": _keras_on_torch}
    if backend not in builds:
        raise Unavailable(
            f"it is measured on JAX or PyTorch, not on {backend}: set KERAS_BACKEND=jax"
        )
    return [
        Way(
            f"keras.layers.AdditiveAttention on {backend}",
            partial(builds[backend], work),
            backend == "jax",
        )
    ]


def _build(work: Work, summed: bool) -> Call:
    jax, jnp = _load("jax"), _load("jax.numpy")

    def scores(q: Any, k: Any, w: Any) -> Any:
        difference = q[:, :, None] - k[:, None] if not work.formula.learned else None
        if work.score == "laplace":
            return -w * jnp.abs(difference).sum(-1)
        if work.score == "gaussian":
            return -w * jnp.square(difference).sum(-1)
        x = q[:, :, None] + k[:, None]
        x = jnp.tanh(x) if work.score == "additive" else jnp.where(x > 0, x, 0.2 * x)
        return (x * w).sum(-1) if summed else x @ w

    def attend(q: Any, k: Any, v: Any, w: Any) -> Any:
        return jax.nn.softmax(scores(q, k, w), -1) @ v

    return _jitted(attend, work)


def _jitted(attend: Callable[..., Any], work: Work) -> Call:
    """`attend(q, k, v, w)`, compiled; with the gradients when training."""
    jax = _load("jax")
    inputs = [_array(x) for x in (work.query, work.key, work.value, work.weight)]
    d_output = _array(work.d_output)
    wanted = 4 if work.formula.learned else 3

    def both(d_output: Any, *inputs: Any) -> Any:
        output, pull = jax.vjp(lambda *some: attend(*some, *inputs[wanted:]), *inputs[:wanted])
        return output, *pull(d_output)

    if work.training:
        compiled = jax.jit(both)
        return lambda: jax.block_until_ready(compiled(d_output, *inputs))
    forward = jax.jit(attend)
    return lambda: (jax.block_until_ready(forward(*inputs)),)


def _keras_on_jax(work: Work) -> Call:
    layer = _layer(work)

    def attend(q: Any, k: Any, v: Any, w: Any) -> Any:
        return layer.stateless_call([w], [], [q, v, k])[0]

    return _jitted(attend, work)


def _keras_on_torch(work: Work) -> Call:
    layer = _layer(work)
    inputs = [x.detach().requires_grad_(work.training) for x in (work.query, work.key, work.value)]
    leaves = [*inputs, layer.scale.value]
    query, key, value = inputs

    def call() -> Any:
        if not work.training:
            with torch.no_grad():
                return (layer([query, value, key]),)
        output = layer([query, value, key])
        return (output.detach(), *torch.autograd.grad(output, leaves, work.d_output))

    return call


def _layer(work: Work) -> Any:
    layer = _load("keras").layers.AdditiveAttention(dtype=work.dtype)
    layer.build([tuple(x.shape) for x in (work.query, work.value, work.key)])
    layer.set_weights([work.weight.float().numpy()])
    return layer


def _array(x: Tensor) -> Any:
    x = x.detach()
    return _load("jax.numpy").asarray(x.float().numpy(), str(x.dtype).removeprefix("torch."))


def _load(package: str) -> Any:
    """The package; JAX starts its threads when it is first used, as many as PyTorch has."""
    if package in sys.modules:
        return sys.modules[package]
    with _own_threads():
        loaded = importlib.import_module(package)
        if importlib.util.find_spec("jax") is not None:
            importlib.import_module("jax").devices()
    return loaded


@contextmanager
def _own_threads() -> Iterator[None]:
    """As many processors for this as PyTorch has threads: so many threads are then started."""
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[: torch.get_num_threads()])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
