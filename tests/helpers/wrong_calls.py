"""Wrong calls of `attention`, with their error messages."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anyscore import (
    Additive,
    Bilinear,
    Causal,
    Concat,
    Cosine,
    GATv2,
    Gaussian,
    Interval,
    Keys,
    Lengths,
    ScaledDot,
    Score,
    Trilinear,
    Window,
    attention,
)
from anyscore.modifiers.biases import Bias
from helpers import wrong_biases


def z(*shape: int, dtype: str = "float64") -> np.ndarray:
    return np.zeros(shape, dtype)


def right() -> dict[str, Any]:
    return {"query": z(2, 3, 5), "key": z(2, 7, 5), "value": z(2, 7, 11)}


def given(change: dict[str, Any], to: Callable[[np.ndarray], Any]) -> tuple[list, dict[str, Any]]:
    """Return tensors and options of the right call with a change; `to` makes tensors."""

    def made(x: Any) -> Any:
        if isinstance(x, Score | Bias):
            return x.map(lambda y: to(y) if isinstance(y, np.ndarray) else y)
        return to(x) if isinstance(x, np.ndarray) else x

    options = {name: made(x) for name, x in {**right(), **change}.items()}
    return [options.pop(name) for name in ("query", "key", "value")], options


def call(framework: str, change: dict[str, Any], function: Callable[..., Any] = attention) -> Any:
    """Return the result of the right call with a change, in NumPy or PyTorch."""
    if framework == "torch":  # some environments have no PyTorch
        from torch import tensor as to
    else:
        to = np.asarray
    tensors, options = given(change, to)
    return function(*tensors, **options)


def check_as_in_numpy(
    change: dict[str, Any], parts: list[str], to: Callable[[np.ndarray], Any]
) -> None:
    """Assert that tensors made by `to` raise NumPy's error, and that its text has `parts`."""
    with pytest.raises((TypeError, ValueError)) as expected:
        call("numpy", change)
    tensors, options = given(change, to)
    with pytest.raises(type(expected.value)) as raised:
        attention(*tensors, **options)
    assert type(raised.value) is type(expected.value)
    text = str(raised.value)
    assert text == str(expected.value)
    assert all(part in text for part in parts), text
    assert "\n" not in text


TENSOR = "expected a tensor of one of: NumPy, PyTorch, JAX, TensorFlow, MXNet."
DTYPES = "expected one of float32, float64, bfloat16, float16."
BOOLEAN = "must be boolean with True = may attend, got"
FLOAT = "for an additive mask of 0 and −inf pass mask == 0; a float tensor is a bias, pass bias=."
INTEGER = "for 0/1 integers pass mask != 0; for lengths pass valid_lens= or Lengths(n)."
SCORE = (
    "score must be a score object, such as ScaledDot() or Additive(W_q, W_k, w_v), or a callable "
    "(query, key) → (..., T_q, T_k), got"
)
HEADS = (
    "Key and value heads (axis −3) may be fewer than query heads if they divide them and all "
    "three have that axis."
)
LENGTHS = "expected one of (), (2,), (2, 3) (leading dimensions (2,), 3 queries)."
ONE_WIDTH = "needs queries and keys of one width: project them, or use Bilinear or Additive;"
MASK = (
    "expected rank ≥ 2 and a shape that broadcasts to (2, 3, 7) (leading dimensions, queries, "
    "keys)."
)
ALIGN = (
    'with 3 queries and 7 keys must say how they line up: align="start", align="end" (the last '
    "query sees the last key), or offset= (the key position of the first query)."
)

TABLE: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"query": [1.0]}, TypeError, f"query is a list, {TENSOR}"),
    ({"value": None}, TypeError, f"value is a NoneType, {TENSOR}"),
    ({"query": z(2, 3, 5, dtype="int64")}, TypeError, f"query is int64, {DTYPES}"),
    ({"key": z(2, 7, 5, dtype="complex128")}, TypeError, f"key is complex128, {DTYPES}"),
    ({"value": z(2, 7, 5, dtype="bool")}, TypeError, f"value is bool, {DTYPES}"),
    (
        {"query": z(2, 3, 5, dtype="float32")},
        TypeError,
        "query is float32 but key is float64: convert them to one dtype.",
    ),
    (
        {"value": z(2, 7, 5, dtype="float16")},
        TypeError,
        "query is float64 but value is float16: convert them to one dtype.",
    ),
    (
        {"key": z(5)},
        ValueError,
        "key has shape (5,), expected (..., tokens, width): rank ≥ 2.",
    ),
    (
        {"value": z(2, 6, 11)},
        ValueError,
        "key has 7 tokens but value has 6 (shapes (2, 7, 5) and (2, 6, 11)): "
        "each key needs one value.",
    ),
    (
        {"query": z(3, 3, 5)},
        ValueError,
        "leading dimensions do not broadcast: query (3, 3, 5), key (2, 7, 5), value (2, 7, 11).",
    ),
    (
        {"query": z(2, 5, 3, 5), "key": z(2, 2, 7, 5), "value": z(2, 2, 7, 11)},
        ValueError,
        "leading dimensions do not broadcast: query (2, 5, 3, 5), key (2, 2, 7, 5), "
        f"value (2, 2, 7, 11). {HEADS}",
    ),
    (
        {"query": z(4, 2, 3, 5), "key": z(2, 2, 7, 5), "value": z(2, 2, 7, 11)},
        ValueError,
        "leading dimensions do not broadcast: query (4, 2, 3, 5), key (2, 2, 7, 5), "
        f"value (2, 2, 7, 11). {HEADS}",
    ),
    ({"query": z(2, 3, 4)}, ValueError, f"ScaledDot {ONE_WIDTH} got d_q=4 and d_k=5."),
    (
        {"query": z(2, 3, 4), "score": Gaussian()},
        ValueError,
        f"Gaussian {ONE_WIDTH} got d_q=4 and d_k=5.",
    ),
    (
        {"score": Bilinear(z(4, 5))},
        ValueError,
        "Bilinear.W has shape (4, 5), expected (..., d_q, d_k) with d_q=5 and d_k=5.",
    ),
    (
        {"score": Additive(z(3, 5), z(3, 6), z(3))},
        ValueError,
        "Additive.W_k has shape (3, 6), expected (..., h, d_k) with h=3 and d_k=5.",
    ),
    (
        {"score": GATv2(None, None, z(3))},
        ValueError,
        "GATv2.w_v has shape (3,), expected (..., h) with h=5.",
    ),
    (
        {"score": Concat(z(3, 9), z(3))},
        ValueError,
        "Concat.W has shape (3, 9), expected (..., h, d_q + d_k) with h=3 and d_q + d_k=10.",
    ),
    (
        {"score": Additive(z(3, 5, dtype="float32"), z(3, 5), z(3))},
        TypeError,
        "query is float64 but Additive.W_q is float32: convert them to one dtype.",
    ),
    (
        {"score": Additive(SimpleNamespace(shape=(3, 5)), z(3, 5), z(3))},  # like a data frame
        TypeError,
        "Additive.W_q is a SimpleNamespace, expected a tensor.",
    ),
    (
        {
            "query": z(2, 4, 3, 5),
            "key": z(2, 2, 7, 5),
            "value": z(2, 2, 7, 5),
            "score": Concat(z(2, 3, 10), z(3)),
        },
        ValueError,
        "Concat.W has shape (2, 3, 10): its leading dimensions (2,) do not broadcast to (2, 4), "
        "those of the queries.",
    ),
    (
        {
            "query": z(2, 4, 3, 5),
            "key": z(2, 2, 7, 5),
            "value": z(2, 2, 7, 5),
            "score": Concat(z(4, 3, 10), z(3)),
        },
        ValueError,
        "Concat.W has shape (4, 3, 10): its leading dimensions (4,) do not broadcast to (2, 2), "
        "those of the keys.",
    ),
    (
        {"key": z(2, 7, 6), "score": Additive(None, None, z(5))},
        ValueError,
        "Additive without W_q and W_k needs queries and keys projected to one width; got d_q=5 "
        "and d_k=6.",
    ),
    (
        {"score": Additive(None, None, 2.0)},
        TypeError,
        "Additive.w_v is a float, expected a tensor.",
    ),
    (
        {"score": Trilinear(np.float64(1), z(5), z(5))},
        TypeError,
        "Trilinear.w_q is a float64, expected a tensor.",
    ),
    ({"score": Cosine(1e-200)}, ValueError, "Cosine.tau must be ≥ 1e-154 in float64, got 1e-200."),
    (
        {"score": ScaledDot(10**400)},
        ValueError,
        f"ScaledDot.scale must be a finite number in float64, got 1{'0' * 59}….",
    ),
    (
        {"score": Gaussian(np.array(1j))},
        TypeError,
        f"Gaussian.sigma is complex128, {DTYPES}",
    ),
    (
        {"valid_lens": [["x"] * 30] * 16},
        TypeError,
        f"valid_lens is [[{', '.join(12 * [repr('x')])[:58]}… (list), expected a number, a list "
        "or a tensor.",
    ),
    ({"score": Gaussian(0)}, ValueError, "Gaussian.sigma must be > 0, got 0."),
    (
        {"score": Gaussian(1e-200)},
        ValueError,
        "Gaussian.sigma must be ≥ 1e-154 in float64, got 1e-200.",
    ),
    (
        {**{name: x.astype("float32") for name, x in right().items()}, "score": Gaussian(1e-30)},
        ValueError,
        "Gaussian.sigma must be ≥ 1e-19 in float32, got 1e-30.",
    ),
    ({"score": Cosine(float("nan"))}, ValueError, "Cosine.tau must be > 0, got nan."),
    (
        {"score": ScaledDot(float("inf"))},
        ValueError,
        "ScaledDot.scale must be a finite number in float64, got inf.",
    ),
    (
        {"score": GATv2(None, None, z(5), float("nan"))},
        ValueError,
        "GATv2.negative_slope must be a finite number in float64, got nan.",
    ),
    ({"score": "dot"}, TypeError, f"{SCORE} 'dot'."),
    ({"score": ScaledDot}, TypeError, f"{SCORE} {ScaledDot!r}."),
    ({"score": None}, TypeError, f"{SCORE} None."),
    (
        {"score": lambda q, k: q},
        ValueError,
        "the score gave shape (2, 3, 5), expected (2, 3, 7).",
    ),
    ({"mask": z(2, 3, 7)}, TypeError, f"mask {BOOLEAN} float64: {FLOAT}"),
    ({"mask": z(3, 7, dtype="int64")}, TypeError, f"mask {BOOLEAN} int64: {INTEGER}"),
    ({"mask": z(3, 7, dtype="uint8")}, TypeError, f"mask {BOOLEAN} uint8: {INTEGER}"),
    ({"mask": [1, 0]}, TypeError, f"mask {BOOLEAN} int64: {INTEGER}"),
    ({"mask": Keys(z(2, 7))}, TypeError, f"Keys(keep) {BOOLEAN} float64: {FLOAT}"),
    ({"mask": Causal() & z(3, 7)}, ValueError, f"Causal {ALIGN}"),
    ({"mask": Window(1, 1)}, ValueError, f"Window {ALIGN}"),
    ({"mask": z(7, dtype="bool")}, ValueError, f"mask has shape (7,), {MASK}"),
    ({"mask": True}, ValueError, f"mask has shape (), {MASK}"),
    ({"mask": z(3, 8, dtype="bool")}, ValueError, f"mask has shape (3, 8), {MASK}"),
    (
        {"mask": z(2, 7, dtype="bool")},
        ValueError,
        f"mask has shape (2, 7), {MASK} "
        "For a key-padding mask of shape (batch, keys) pass mask=Keys(keep).",
    ),
    (
        {
            "query": z(2, 4, 3, 5),
            "key": z(2, 4, 7, 5),
            "value": z(2, 4, 7, 5),
            "mask": z(2, 3, 7, dtype="bool"),
        },
        ValueError,
        "mask has shape (2, 3, 7), expected rank ≥ 2 and a shape that broadcasts to (2, 4, 3, 7) "
        "(leading dimensions, queries, keys). For a mask without heads insert their axis: "
        "mask[:, None].",
    ),
    (
        {"mask": Keys(z(3, 7, dtype="bool"))},
        ValueError,
        "Keys(keep) has shape (3, 7), expected (2, 7) or a shape that broadcasts to (2, 7).",
    ),
    (
        {"valid_lens": [True, False]},
        TypeError,
        "valid_lens must be integers or floats, got bool: for a boolean padding mask "
        "(True = may attend) pass mask=Keys(keep).",
    ),
    ({"valid_lens": [1, 2, 3]}, ValueError, f"valid_lens has shape (3,), {LENGTHS}"),
    ({"mask": Lengths(z(2, 4))}, ValueError, f"valid_lens has shape (2, 4), {LENGTHS}"),
    ({"mask": Interval([1, 2, 3], None)}, ValueError, f"start has shape (3,), {LENGTHS}"),
    ({"mask": Interval(0, [[1]] * 3)}, ValueError, f"stop has shape (3, 1), {LENGTHS}"),
    ({"mask": Causal(offset=np.array(1.5))}, TypeError, "offset must be integers, got float64."),
    ({"mask": Causal(offset=[1, 2, 3])}, ValueError, f"offset has shape (3,), {LENGTHS}"),
    ({"dropout": 1.0}, ValueError, "dropout must be in [0, 1), got 1.0."),
    ({"dropout": -0.1}, ValueError, "dropout must be in [0, 1), got -0.1."),
    ({"dropout": float("nan")}, ValueError, "dropout must be in [0, 1), got nan."),
    ({"dropout": "0.1"}, TypeError, "dropout must be a number in [0, 1), got '0.1'."),
    ({"dropout": True}, TypeError, "dropout must be a number in [0, 1), got True."),
    (
        {"impl": "flash"},
        ValueError,
        "impl must be one of 'auto', 'reference', 'fused', 'separable', got 'flash'.",
    ),
    *wrong_biases.TABLE,
    (
        {"normalizer": "sparse"},
        ValueError,
        "unknown normalizer 'sparse': did you mean 'sparsemax'? Known: softmax, sigmoid, "
        "sparsemax, entmax15.",
    ),
    (
        {"normalizer": "sigmoid", "return_lse": True},
        ValueError,
        "return_lse is for normalizer='softmax': sigmoid takes no log-sum-exp of the scores. Leave "
        "it out, or use log_sum_exp.",
    ),
]


# Words that each message must contain
NAMING: list[tuple[dict[str, Any], list[str]]] = [
    ({"score": Bilinear(z(5))}, ["Bilinear", "W", "(5,)"]),
    ({"score": Additive(z(3, 5), z(4, 5), z(3))}, ["Additive", "W_k", "(4, 5)"]),
    ({"score": Additive(z(3, 5), z(3, 5), z(4))}, ["Additive", "w_v", "(4,)"]),
    ({"score": Additive(z(3, 5), z(3, 5), z(3), z(4))}, ["Additive", "bias", "(4,)"]),
    ({"score": Additive(z(5), z(3, 5), z(3))}, ["Additive", "W_q", "(5,)"]),
    ({"score": GATv2(z(3, 5), z(3, 5), z())}, ["GATv2", "w_v", "()"]),
    ({"score": Concat(z(3, 10), z(4))}, ["Concat", "(4,)"]),
    ({"score": Trilinear(z(5), z(5), z(4))}, ["Trilinear", "w_p", "(4,)"]),
    ({"score": Additive(z(9, 3, 5), z(3, 5), z(3))}, ["Additive", "W_q", "(9, 3, 5)", "(2,)"]),
    ({"score": Gaussian(np.ones(3))}, ["Gaussian", "sigma", "(3,)", "(2,)"]),
    ({"score": lambda q, k: None}, ["score", "NoneType"]),
    ({"score": lambda q, k: z2(k) > 0}, ["score", "bool"]),
    ({"score": lambda q, k: z5(k)}, ["score", "(5, 3, 7)", "(2, 3, 7)"]),
    ({"mask": "x"}, ["mask", "'x'"]),
    ({"mask": Causal}, ["mask", "Causal"]),
    ({"mask": Causal("end") & None}, ["mask", "None"]),
    ({"mask": Keys("x")}, ["Keys(keep)", "'x'"]),
    ({"mask": Lengths(None)}, ["valid_lens", "None"]),
    ({"valid_lens": "a"}, ["valid_lens", "'a'"]),
    ({"valid_lens": 2j}, ["valid_lens", "complex"]),
    ({"mask": Interval("a", 1)}, ["start", "'a'"]),
    ({"mask": Causal(offset=True)}, ["offset", "integers, got"]),
    ({"dropout": 0.1, "dropout_seed": "a"}, ["dropout_seed", "'a'"]),
    ({"dropout": 0.1, "dropout_seed": 1.5}, ["dropout_seed", "1.5"]),
    ({"dropout": 0.1, "dropout_seed": True}, ["dropout_seed", "True"]),
    ({"dropout": 0.1, "dropout_seed": {}}, ["dropout_seed", "{}"]),
    ({"dropout": 0.1, "dropout_seed": np.array(1.5)}, ["dropout_seed", "float64"]),
    ({"dropout": 0.1, "dropout_seed": np.array([1, 2])}, ["dropout_seed", "(2,)"]),
]


def z2(k: Any) -> Any:
    """Return zeros (2, 3, 7) in the framework of k."""
    return (k[..., 0] * 0)[:, None] + (k[:, :3, 0] * 0)[..., None]


def z5(k: Any) -> Any:
    """Return zeros (5, 3, 7) in the framework of k."""
    return z2(k)[0][None] + (k[0, :5, 0] * 0)[:, None, None]
