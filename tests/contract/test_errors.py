"""Errors state the expected argument, the given one and a remedy, alike in every framework."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from anyscore import (
    Additive,
    Causal,
    Cosine,
    Dot,
    Euclidean,
    Gaussian,
    Keys,
    Laplace,
    Lengths,
    Lorentz,
    Mask,
    ScaledDot,
    Score,
    StudentT,
    Trilinear,
    Window,
    attention,
    plan,
)
from anyscore.score import ABSOLUTE, SCORES, Factors, checks
from helpers.wrong_calls import NAMING, TABLE, call, check_as_in_numpy, right, z

pytestmark = pytest.mark.sample


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize(("change", "error", "text"), TABLE, ids=range(len(TABLE)))
def test_table(change: dict[str, Any], error: type, text: str, framework: str) -> None:
    only = "dropout_seed" in change or change.get("value", 0) is None  # `plan` needs no value
    functions = [attention] if only else [attention, plan]
    for function in functions:
        with pytest.raises(error) as raised:
            call(framework, change, function)
        assert type(raised.value) is error
        assert str(raised.value) == text


@pytest.mark.parametrize(("change", "parts"), NAMING, ids=range(len(NAMING)))
def test_names_and_shapes(change: dict[str, Any], parts: list[str]) -> None:
    check_as_in_numpy(change, parts, torch.tensor)


OF_ONE_WIDTH = (
    Dot, ScaledDot, Cosine, Trilinear,
    Gaussian, Laplace, Euclidean, StudentT, Lorentz,
)  # fmt: skip


def test_scores_of_one_width() -> None:
    """Nothing is broadcast where a formula takes differences or products of features."""
    x = right()
    assert {type_ for type_ in SCORES.values() if type_.equal_widths} == set(OF_ONE_WIDTH)
    for type_ in OF_ONE_WIDTH:
        fields = {"w_q": z(5), "w_k": z(5), "w_p": z(5)} if type_ is Trilinear else {}
        with pytest.raises(ValueError, match=f"{type_.__name__} needs queries and keys of one"):
            attention(x["query"], z(*x["key"].shape[:-1], 1), x["value"], score=type_(**fields))


@pytest.mark.parametrize("of", ["float32", "float64"])
@pytest.mark.parametrize("make", [ScaledDot, Gaussian, Cosine])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_scale_of_another_dtype_is_taken(
    make: Callable[[Any], Score], of: str, framework: str
) -> None:
    """A learned scale of float32 works with queries of float64, and the other way round."""
    other = {"float32": "float64", "float64": "float32"}[of]
    tensors = {name: x.astype(of) + 1 for name, x in right().items()}
    expected = call(framework, {**tensors, "score": make(0.5)})
    found = call(framework, {**tensors, "score": make(np.array(0.5, other))})
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-6)


@pytest.mark.parametrize(
    ("names", "change"),
    [
        ("query is a NumPy tensor but key is a PyTorch tensor", {"key": torch.zeros(2, 7, 5)}),
        ("query is a NumPy tensor but value is a PyTorch tensor", {"value": torch.zeros(2, 7, 5)}),
        (
            "query is a NumPy tensor but Additive.W_k is a PyTorch tensor",
            {"score": Additive(z(3, 5), torch.zeros(3, 5).double(), z(3))},
        ),
        (
            "query is a NumPy tensor but Gaussian.sigma is a PyTorch tensor",
            {"score": Gaussian(torch.tensor(1.0))},
        ),
    ],
)
def test_frameworks_do_not_mix(names: str, change: dict[str, Any]) -> None:
    with pytest.raises(TypeError) as raised:
        call("numpy", change)
    assert str(raised.value) == f"{names}: pass all from one framework."


@pytest.mark.parametrize(
    "mask",
    [torch.ones(3, 7).bool(), Lengths(torch.ones(2)), Keys(torch.ones(2, 7).bool())],
)
def test_masks_of_another_framework(mask: Any) -> None:
    with pytest.raises(TypeError, match=r"is a \w+ tensor but the query is a \w+ tensor: pass"):
        call("numpy", {"mask": mask})


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Window(-1, 0), ValueError, "left must be ≥ 0, got -1."),
        (lambda: Window(0, -3), ValueError, "right must be ≥ 0, got -3."),
        (lambda: Window(1.5, 0), TypeError, "left must be an integer ≥ 0 or None, got 1.5."),
        (lambda: Window(0, True), TypeError, "right must be an integer ≥ 0 or None, got True."),
        (lambda: Causal("left"), ValueError, 'align must be "start" or "end", got \'left\'.'),
        (lambda: Causal(1), ValueError, 'align must be "start" or "end", got 1.'),
    ],
)
def test_masks_are_checked_when_made(
    make: Callable[[], Mask], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as raised:
        make()
    assert str(raised.value) == text


def test_errors_come_before_any_work() -> None:
    """A wrong call raises before it calls the score or draws from the generator."""
    called = []
    torch.manual_seed(0)
    state = torch.get_rng_state()
    for change in ({"mask": z(3, 8, dtype="bool")}, {"valid_lens": [1, 2, 3]}, {"impl": "x"}):
        with pytest.raises(ValueError, match=r"expected|one of"):
            call("torch", {"score": called.append, "dropout": 0.5, **change})
    assert not called
    assert torch.equal(torch.get_rng_state(), state)


def test_checks_that_another_thread_forgets_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A passed check is looked up once: another thread may remove it between two look-ups."""

    class Forgetting(dict):
        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            self.clear()
            return found

    monkeypatch.setattr(checks, "_passed", Forgetting())
    for _ in range(3):
        assert call("torch", {}).shape == (2, 3, 11)


@pytest.mark.parametrize(
    ("score", "text"),
    [
        (Gaussian(0), "sigma must be > 0, got 0"),
        (Cosine(0.0), "tau must be > 0"),
        (Laplace(-1.0), "sigma must be > 0"),
    ],
)
def test_scales_that_divide_are_positive(score: Score, text: str) -> None:
    x = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match=text):
        attention(x, x, x, score=score)


@dataclass(frozen=True, eq=False)
class Gated(Score):
    """A user's score with a function of the user."""

    w: Any
    gate: Any

    formula: ClassVar[str] = "−w·|g(q) − g(k)|"
    shapes: ClassVar[dict[str, tuple[str, ...]]] = {"w": ("d_q",)}
    equal_widths: ClassVar[bool] = True

    def lower(self, xp: Any, query: Any, key: Any) -> Factors:
        return Factors(self.gate(query), self.gate(key), ABSOLUTE, weight=-self.w)


@pytest.mark.parametrize("make", [np.asarray, torch.tensor])
def test_checks_that_passed_keep_no_object_of_the_user(make: Any) -> None:
    """A function of a score would live on, with all that it holds."""
    x, kept = make(np.ones((1, 3, 5))), []
    for step in range(5):
        memory = make(np.full(5, float(step)))

        def gate(t: Any, memory: Any = memory) -> Any:
            return t * memory

        score = Gated(make(np.ones(5)), gate)
        for _ in range(3):
            attention(x, x, x, score=score)
        kept.append(weakref.ref(gate))
        del memory, gate, score
    gc.collect()
    assert all(one() is None for one in kept)
