"""Normalizers other than the softmax are right in MXNet."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from anyscore.mxnet import Attention
from frameworks.mxnet.arrays import to
from helpers.normalizing import ARRAYS, NORMALIZERS, call, near

pytestmark = pytest.mark.usefixtures("np_mode")


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_values_and_gradients(normalizer: str, impl: str) -> None:
    xs = [to(x, dtype="float64") for x in ARRAYS]
    for x in xs:
        x.attach_grad()
    with autograd.record():
        output = call(*xs, normalizer=normalizer, impl=impl)
        total = (output**2).sum()
    total.backward()
    near([output.asnumpy(), *(x.grad.asnumpy() for x in xs)], normalizer)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_the_layer(normalizer: str) -> None:
    xs = [*(to(x) for x in ARRAYS), mx.np.array([[0], [4]])]
    layer = Attention("gaussian", normalizer=normalizer, sigma=1.5)
    layer.initialize()
    output = layer(*xs)
    exact = call(*ARRAYS, normalizer=normalizer, return_weights=True)
    np.testing.assert_allclose(output.asnumpy(), exact.output, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        layer.attention_weights.asnumpy(), exact.weights, rtol=1e-4, atol=1e-5
    )
    layer.hybridize()
    np.testing.assert_allclose(layer(*xs).asnumpy(), exact.output, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_the_other_kind_of_arrays(normalizer: str) -> None:
    found = call(*(mx.nd.array(x) for x in ARRAYS), normalizer=normalizer)
    assert type(found) is mx.nd.NDArray
    exact = call(*ARRAYS, normalizer=normalizer)
    np.testing.assert_allclose(found.asnumpy(), exact, rtol=1e-4, atol=1e-5)
