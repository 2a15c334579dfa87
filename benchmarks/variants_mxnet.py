"""MXNet: the formula as *Dive into Deep Learning* writes it, and anyscore."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from anyscore import Additive, attention
from anyscore.lab.bench.rivals import Call, Variant
from benchmarks.work import Work


def anyscore_(work: Work) -> list[Variant]:
    """`attention` with projections and lengths."""

    def attend(n: Any, q: Any, k: Any, v: Any, *parameters: Any) -> Any:
        return attention(q, k, v, score=Additive(*parameters), valid_lens=n)

    return [Variant("anyscore.attention", partial(_call, attend, work))]


def formula(work: Work) -> list[Variant]:
    """Compute the formula as *Dive into Deep Learning* has it, of the same parameters."""
    np, npx = (importlib.import_module(f"mxnet.{name}") for name in ("numpy", "numpy_extension"))
    width = work.shape.width

    def dense(x: Any, W: Any, units: int) -> Any:
        return npx.fully_connected(x, W, no_bias=True, flatten=False, num_hidden=units)

    def attend(n: Any, q: Any, k: Any, v: Any, W_q: Any, W_k: Any, w_v: Any) -> Any:
        a, b = dense(q, W_q, width), dense(k, W_k, width)
        t = np.tanh(np.expand_dims(a, 2) + np.expand_dims(b, 1))
        s = dense(t, w_v.reshape(1, -1), 1).squeeze(-1)
        rows = s.reshape(-1, s.shape[-1])
        s = npx.sequence_mask(rows, n.repeat(s.shape[1]), True, value=-1e6, axis=1)
        return npx.batch_dot(npx.softmax(s).reshape(*work.shape[:3]), v)

    return [Variant("the formula", partial(_call, attend, work))]


def _call(attend: Callable[..., Any], work: Work) -> Call:
    """`attend(lengths, *inputs)`, with the gradients when training."""
    mx = importlib.import_module("mxnet")
    mx.npx.set_np()
    assert work.valid_lens is not None
    lengths = mx.np.array(work.valid_lens.numpy(), dtype="int32")
    inputs = [mx.np.array(x.numpy(), dtype="float32") for x in work.inputs.values()]
    upstream = mx.np.array(work.upstream.numpy(), dtype="float32")
    for x in inputs:
        x.attach_grad()

    def forward() -> Any:
        output = attend(lengths, *inputs)
        mx.nd.waitall()
        return [output]

    def both() -> Any:
        with mx.autograd.record():
            output = attend(lengths, *inputs)
        output.backward(upstream)
        mx.nd.waitall()
        return [output, *(x.grad for x in inputs)]

    return both if work.training else forward
