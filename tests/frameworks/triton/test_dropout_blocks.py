"""In the Triton kernels a block of a longer call drops the entries that the longer call drops."""

from __future__ import annotations

import pytest
import torch

from anyscore.call.operands import Operands, Results
from anyscore.kernels.triton import attention as triton
from anyscore.kernels.triton import graphs, pairs
from helpers.dropout_blocks import ORIGINS, QUERIES, SEED, SETTINGS, assert_drops, block


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("origin", [ORIGINS[0], ORIGINS[3]])
def test_values_and_gradients(origin: tuple[int, int], queries: int, dtype: str) -> None:
    x = block(queries, dtype)
    a, b, value, d_output = map(torch.tensor, x)
    record = Operands(a, b, value=value, seed=torch.tensor(SEED), origin=torch.tensor(origin))
    results = triton.forward(pairs.PRODUCT, record, SETTINGS, a.dtype)
    upstream = Results(d_output, None)
    gradients = triton.backward(pairs.PRODUCT, record, SETTINGS, results, upstream)
    found = {f"d_{name}": getattr(gradients, name).numpy() for name in ("a", "b", "value")}
    assert_drops({"output": results.output.numpy(), **found}, x, origin)


def test_edges_have_no_origin() -> None:
    a, b, value, _ = map(torch.tensor, block(1, "float32"))
    record = Operands(a, b, value=value, seed=torch.tensor(SEED), origin=torch.tensor([0, 4]))
    record = record._replace(rowptr=torch.tensor([0, 2]), col=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="origin is for dropout without edges"):
        graphs.forward(pairs.PRODUCT, record, SETTINGS, a.dtype)
