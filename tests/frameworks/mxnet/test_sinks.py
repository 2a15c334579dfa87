"""A sink in MXNet is one more logit, for both kinds of arrays."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from anyscore import attention
from frameworks.mxnet.arrays import to

pytestmark = pytest.mark.usefixtures("np_mode")

MADE = np.random.default_rng(0)
XS = [MADE.normal(size=n) for n in ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 2), (3,))]


def test_values_and_gradients() -> None:
    q, k, v, sink = (to(x, dtype="float64") for x in XS)
    found = []
    for written_out in (False, True):
        for x in (q, k, v, sink):
            x.attach_grad()
        with autograd.record():
            if written_out:
                s = mx.np.matmul(q, k.swapaxes(-1, -2)) / 5**0.5
                logit = mx.np.broadcast_to(sink.reshape(3, 1, 1), (2, 3, 4, 1))
                weights = mx.npx.softmax(mx.np.concatenate([s, logit], -1), axis=-1)[..., :-1]
                output = mx.np.matmul(weights, v)
            else:
                output = attention(q, k, v, sink=sink)
            total = (output**2).sum()
        total.backward()
        found.append([output.asnumpy(), *(x.grad.asnumpy() for x in (q, k, v, sink))])
    for x, y in zip(*found, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)


def test_the_other_kind_of_arrays() -> None:
    given = [mx.nd.array(x) for x in XS]
    found = attention(*given[:3], sink=given[3])
    exact = attention(*XS[:3], sink=XS[3])
    assert type(found) is mx.nd.NDArray
    np.testing.assert_allclose(found.asnumpy(), exact, rtol=1e-5, atol=1e-6)
