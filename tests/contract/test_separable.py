"""impl="separable": the tables of its functions, and the calls that it refuses.

`tests/frameworks/triton/untried/test_separable.py` runs the kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anyscore import Additive, Dot, GATv2, attention, log_sum_exp, plan
from anyscore.backends.torch import triton
from anyscore.backends.torch.backend import Torch
from anyscore.kernels import tried
from anyscore.kernels.triton.untried import tables
from anyscore.kernels.triton.untried.tables import MEAN, ONE, PAIRS, deviation, values

pytestmark = pytest.mark.sample

LEVELS = range(tables.LEVELS)
KNOWN = {0.5: (6, 8), 2**-0.5: (8, 10), 1.0: (10, 14), 2**0.5: (14, 20), 2.0: (18, None)}
"""Columns per feature, by the deviation of a and b, for bfloat16 and float16 inputs."""


def level_of(sigma: float) -> int:
    return min(LEVELS, key=lambda i: abs(deviation(i) - sigma))


def gaussian(sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Return points and weights of the mean over a Gaussian."""
    points = np.linspace(-5, 5, 700)
    weights = np.exp(-(points**2) / 2)
    return sigma * points, weights / weights.sum()


def approximation(level: int, pairs: int, x: np.ndarray) -> np.ndarray:
    """Return tanh(x_i + x_j) by the functions of a level."""
    f = values(level, x)
    columns = np.arange(2 * pairs)
    product: np.ndarray = f[:, columns] @ f[:, columns ^ 1].T
    return product + f[:, MEAN, None] + f[:, MEAN]


@pytest.mark.parametrize("level", LEVELS)
def test_errors_are_those_of_the_table(level: int) -> None:
    x, weights = gaussian(deviation(level))
    exact = np.tanh(x[:, None] + x)
    for pairs in (1, 4, 8, PAIRS):
        squares = (approximation(level, pairs, x) - exact) ** 2
        mean = weights @ squares @ weights
        np.testing.assert_allclose(mean, tables.tables().means[level, pairs], rtol=0.1, atol=1e-18)
        inside = np.abs(x) < 4.5 * deviation(level)
        y = np.abs(np.tanh(tables.steepness(level) * x[inside]))
        cells = (y * tables.CELLS).astype(int)
        of_cells = tables.tables().errors[level, pairs][cells]
        assert ((squares @ weights)[inside] <= 1.05 * of_cells + 1e-18).all()


@pytest.mark.parametrize(("sigma", "columns"), KNOWN.items())
def test_columns_for_half_of_the_error_of_rounding(
    sigma: float, columns: tuple[int, int | None]
) -> None:
    level, of = level_of(sigma), tables.tables()
    x, weights = gaussian(sigma)
    slopes = 1 - np.tanh(x[:, None] + x) ** 2
    for bits, noise, expected in zip((7, 10), of.noise[:, level], columns, strict=True):
        ulp = 2.0 ** (np.floor(np.log2(np.abs(x))) - bits)
        rounding = weights @ (slopes**2 * (ulp[:, None] ** 2 + ulp**2) / 12) @ weights
        np.testing.assert_allclose(noise, rounding, rtol=0.1)
        enough = [2 * n for n in range(PAIRS + 1) if of.means[level, n] <= noise / 4]
        assert min(enough, default=None) == expected


def test_columns_for_slopes() -> None:
    assert tables.tables().trained.tolist() == [2, 3, 4, 5, 6, 8, 11, 12, 12, 12]
    for level in range(7):
        x, weights = gaussian(deviation(level))
        step = 1e-4
        f, after, before = (values(level, y) for y in (x, x + step, x - step))
        columns = np.arange(2 * int(tables.tables().trained[level]))
        slope = ((after - before) / (2 * step))[:, columns] @ f[:, columns ^ 1].T
        exact = 1 - np.tanh(x[:, None] + x) ** 2
        slope, exact = (y - (y @ weights)[:, None] for y in (slope, exact))
        error, size = (weights @ y**2 @ weights for y in (slope - exact, exact))
        assert np.sqrt(error / size) < 3e-3


@pytest.mark.parametrize("level", LEVELS)
def test_functions_are_bounded(level: int) -> None:
    far = values(level, np.array([-np.inf, -1e30, -50.0, 50.0, 1e30, np.inf]))
    assert np.isfinite(far).all()
    assert np.abs(values(level, np.linspace(-100, 100, 999))).max() < 2
    np.testing.assert_array_equal(far[:, ONE], 1)


# ----------------------------------------------------------------------- refusals


def refusal(*args: Any, **options: Any) -> str:
    """Return the reason of the one error that `attention` and `plan` raise."""
    found = set()
    for function in (attention, plan):
        with pytest.raises(NotImplementedError) as error:
            function(*args, impl="separable", **options)
        found.add(str(error.value))
    (text,) = found
    assert text.startswith('impl="separable" cannot run: ')
    assert text.endswith('. Use impl="auto".')
    return text[len('impl="separable" cannot run: ') : -len('. Use impl="auto".')]


def test_numpy_is_refused() -> None:
    x, score = np.ones((2, 3, 5)), Additive(None, None, np.ones(5))
    assert refusal(x, x, x, score=score) == "it is for PyTorch on NVIDIA GPUs"


X = torch.ones(2, 3, 5, dtype=torch.bfloat16)
ADDITIVE = Additive(None, None, X[0, 0])
CALLS: list[tuple[dict[str, Any], str]] = [
    ({}, "it is for NVIDIA GPUs, and the tensors are on cpu"),
    (
        {"score": Dot()},
        "it is for the scores Additive and Concat, and the score has the pair 'product'",
    ),
    (
        {"score": GATv2(None, None, X[0, 0])},
        "it is for the scores Additive and Concat, and the score has the pair 'leaky_relu'",
    ),
    (
        {"score": lambda q, k: q @ k.mT},
        "it is for the scores Additive and Concat, and the score is a callable",
    ),
    ({"softcap": 3.0}, "it has no outer function, and the call has one, such as a softcap"),
    ({"return_weights": True}, "it returns no weights, and the call asks for them"),
    ({"normalizer": "sigmoid"}, "it is for normalizer='softmax'"),
]


@pytest.mark.parametrize(("options", "reason"), CALLS)
def test_calls_that_are_refused(options: dict[str, Any], reason: str) -> None:
    assert refusal(X, X, X, **{"score": ADDITIVE, **options}) == reason


def test_dtypes_that_are_refused() -> None:
    x, score = X.float(), Additive(None, None, X[0, 0].float())
    assert refusal(x, x, x, score=score) == "it takes bfloat16 and float16, and a tensor is float32"


def test_calls_without_values_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="it is for calls with values"):
        log_sum_exp(X, X, score=ADDITIVE, impl="separable")


# -------------------------------------------------------------- without being asked


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Let tensors on the CPU pass for those of a GPU of this compute capability."""
    found = [(9, 0)]
    monkeypatch.setenv(tried.SWITCH, "1")
    monkeypatch.setattr(triton, "_why_not_on_nvidia", lambda task, options: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found[0])
    monkeypatch.setattr(
        Torch, "prefers_separable", lambda self, *given: triton.prefers_separable(*given)
    )
    return found


def route(queries: int, keys: int, lead: int = 32, score: Any = None, **options: Any) -> str:
    """Return the route of a call of width 64, whose tensors have no memory."""
    x = torch.ones(1, 1, 1, dtype=options.pop("dtype", torch.bfloat16))
    q, k = (x.expand(lead, n, 64) for n in (queries, keys))
    score = Additive(None, None, x[0, 0].expand(64)) if score is None else score
    return plan(q, k, k, score=score, **options).route


@pytest.mark.usefixtures("capability")
def test_large_calls_in_half_precision_are_products() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        assert route(4096, 4096, dtype=dtype) == "separable"
        assert route(4096, 4096, dtype=dtype, return_lse=True, dropout=0.1) == "separable"
    assert route(4096, 4096, impl="fused") != "separable"
    assert route(4096, 4096, dtype=torch.float32) != "separable"
    assert route(4096, 4096, score=Dot()) != "separable"
    for options in ({"softcap": 2.0}, {"return_weights": True}, {"normalizer": "sigmoid"}):
        assert route(4096, 4096, **options) != "separable"


@pytest.mark.usefixtures("capability")
def test_small_calls_are_exact() -> None:
    """Elements and tokens have a bound each, at which products begin."""
    assert route(2048, 2048, lead=16) == "separable"
    assert route(2048, 2047, lead=16) != "separable"
    for few in (511, 512):
        for sizes in ((few, 2**20), (2**20, few)):
            assert (route(*sizes) == "separable") is (few == 512)


@pytest.mark.usefixtures("capability")
def test_without_the_switch_every_call_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("0", ""):
        monkeypatch.setenv(tried.SWITCH, value)
        assert route(4096, 4096) != "separable"


def test_other_gpus_are_exact(capability: list[tuple[int, int]]) -> None:
    for now in ((8, 0), (9, 0), (8, 6), (8, 9), (10, 0), (12, 0)):
        capability[0] = now
        assert (route(4096, 4096) == "separable") is (now in triton.COMPILED)
