"""Wrong biases of a call with 3 queries, 7 keys and a batch of 2, with their error messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyscore import ALiBi, Relative

DTYPES = "expected one of float32, float64, bfloat16, float16"

TABLE: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"bias": [[0.0]]},
        TypeError,
        "bias must be a tensor that broadcasts to (..., T_q, T_k), Relative(table) or "
        "ALiBi(slopes), got [[0.0]].",
    ),
    (
        {"bias_after": np.zeros((4, 7))},
        ValueError,
        "bias_after has shape (4, 7), expected what broadcasts to (2, 3, 7).",
    ),
    (
        {"bias": np.zeros((3, 7), bool)},
        TypeError,
        f"bias is bool, {DTYPES}: a boolean tensor is a mask, pass mask=.",
    ),
    ({"bias": np.zeros((3, 7), "int32")}, TypeError, f"bias is int32, {DTYPES}."),
    (
        {"bias": Relative(np.zeros(5))},
        ValueError,
        "Relative with 3 queries and 7 keys must say how they line up: "
        'align="start", align="end" (the last query sees the last key), or offset= (the key '
        "position of the first query).",
    ),
    (
        {"bias_after": Relative(np.zeros(5, "int32"), align="end")},
        TypeError,
        f"bias_after.table is int32, {DTYPES}.",
    ),
    (
        {"bias": ALiBi(np.zeros(3), align="end")},
        ValueError,
        "bias has the leading dimensions (3,), expected what broadcasts to (2,), those of the "
        "queries.",
    ),
]
