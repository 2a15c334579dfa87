"""Windows and offsets of any size attend the right keys, also where sums of 64 bits overflow."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import Dot, Window, attention

pytestmark = pytest.mark.sample

OFFSETS = [-(2**63), -(2**62) - 1, -(2**31), -3, 2, 2**31 - 1, 2**61, 2**63 - 1, 2**63, 2**64 - 1]
WIDTHS = [0, 1, 2**31, 2**61, 2**63 - 1, 2**63, 2**64 - 1, 2**70]


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "uint32", "int8", "uint8"])
@pytest.mark.parametrize("tensor", [np.asarray, torch.from_numpy])
def test_windows_of_any_size_are_exact(dtype: str, tensor: Any) -> None:
    """Windows are exact at every offset of 64 bits and at wider widths: no sum overflows."""
    query, key = (tensor(np.zeros((n, 2), np.float32)) for n in (3, 5))
    kept = np.iinfo(dtype).min, np.iinfo(dtype).max
    for offset in (x for x in OFFSETS if kept[0] <= x <= kept[1]):
        for left, right in product([None, *WIDTHS], repeat=2):
            mask = Window(left, right, "start", tensor(np.array(offset, dtype)))
            found = attention(query, key, key, score=Dot(), mask=mask, return_weights=True)
            expected = [
                [
                    (left is None or j >= i + offset - left)
                    and (right is None or j <= i + offset + right)
                    for j in range(5)
                ]
                for i in range(3)
            ]
            assert (np.asarray(found.weights) > 0).tolist() == expected, (offset, left, right)


@pytest.mark.parametrize("tensor", [np.asarray, torch.from_numpy])
def test_lists_of_offsets_of_any_size_are_exact(tensor: Any) -> None:
    """Lists of signed or unsigned offsets, one for each query, are exact."""
    query, key = (tensor(np.zeros((n, 2), np.float32)) for n in (2, 5))
    lists = [(-(2**63), 2**63 - 1), (2**64 - 1, 2**63), (2, 2**64 - 1), (-(2**63), 1)]
    for offsets in lists:
        for left, right in product([None, *WIDTHS[:6]], repeat=2):
            mask = Window(left, right, "start", list(offsets))
            found = attention(query, key, key, score=Dot(), mask=mask, return_weights=True)
            expected = [
                [
                    (left is None or j >= i + offsets[i] - left)
                    and (right is None or j <= i + offsets[i] + right)
                    for j in range(5)
                ]
                for i in range(2)
            ]
            assert (np.asarray(found.weights) > 0).tolist() == expected, (offsets, left, right)
