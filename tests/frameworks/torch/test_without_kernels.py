"""Devices without kernels: plans and warnings, of tensors that have a device but no memory."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from anyscore import (
    Additive,
    Causal,
    Dot,
    Edges,
    Gaussian,
    Laplace,
    Lengths,
    attention,
    log_sum_exp,
    plan,
    scores,
)
from anyscore.backends.torch import triton
from anyscore.kernels import tried
from anyscore.lab.train.cost import peak_memory_mib
from anyscore.torch import Attention

SWITCHES_ON = "; the environment variable ANYSCORE_UNTRIED=1 switches them on"
AMD = "the kernels compile for AMD GPUs, and nobody ran them there" + SWITCHES_ON
INTEL = "nobody compiled the kernels for Intel GPUs, or ran them there" + SWITCHES_ON
OLD = "it needs compute capability 8.0, and the device has 7.5"


@pytest.fixture(autouse=True)
def _without_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let tensors have any device, with Triton installed and GPUs of NVIDIA before Ampere."""
    monkeypatch.delenv(tried.SWITCH, raising=False)
    monkeypatch.setattr(triton, "_problem", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    triton._why_not_capability.cache_clear()
    yield
    triton._why_not_capability.cache_clear()


def tensors(device: str, tokens: int = 3, width: int = 4) -> tuple[torch.Tensor, ...]:
    with FakeTensorMode():
        return tuple(torch.zeros(1, tokens, width, device=device) for _ in range(3))


@pytest.mark.parametrize(
    ("device", "hip", "reason"),
    [
        ("mps", None, "there are no kernels for mps"),
        ("xpu", None, INTEL),
        ("cuda", "6.4", AMD),
        ("cuda", None, OLD),
    ],
    ids=["mps", "xpu", "amd", "old"],
)
def test_plans(device: str, hip: str | None, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan has the reason, and the bytes of two arrays of queries × keys × width."""
    monkeypatch.setattr(torch.version, "hip", hip)
    x = tensors(device)
    for impl in ("auto", "reference"):
        found = plan(*x, score=Gaussian(1.0), impl=impl)
        assert found.route == "reference"
        assert found.reference_bytes == 2 * 3 * 3 * 4 * 4
        why = "asked for"
        if impl == "auto":
            why = f"sdpa: the score is not a product; triton: {reason}"
        assert found.reason == f"{why}; the reference needs 288 bytes or more"
    with pytest.raises(NotImplementedError, match=re.escape(reason)):
        plan(*x, score=Gaussian(1.0), impl="fused")


@pytest.mark.parametrize(("device", "hip"), [("xpu", None), ("cuda", "6.4")], ids=["xpu", "amd"])
def test_the_switch(device: str, hip: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    x = tensors(device)
    for value, route in (("0", "reference"), ("1", "triton")):
        monkeypatch.setenv("ANYSCORE_UNTRIED", value)
        assert plan(*x, score=Gaussian(1.0)).route == route
    monkeypatch.setattr(triton, "_problem", lambda: "Triton is not installed: pip install triton")
    assert "Triton is not installed" in plan(*x, score=Gaussian(1.0)).reason


WAITS = "; ANYSCORE_UNTRIED=1 would allow {}, which no GPU has run"


@pytest.mark.parametrize(
    ("score", "half", "way"),
    [
        (Laplace(1.0), False, "minima and comparisons"),
        (Gaussian(1.0), True, "squared distances by products"),
        (Gaussian(1.0), False, None),
        (Dot(), True, "tiles of 128 queries"),
    ],
)
def test_a_plan_names_the_way_that_waits(
    score: Any, half: bool, way: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that has run the kernels takes them; the switch allows the others, and says no more."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    with FakeTensorMode(allow_non_fake_inputs=True):
        dtype = torch.bfloat16 if half else torch.float32
        xs = [torch.zeros(1, 3, 4, device="cuda", dtype=dtype) for _ in range(3)]
        for switch, remark in (("0", "" if way is None else WAITS.format(way)), ("1", "")):
            monkeypatch.setenv(tried.SWITCH, switch)
            found = plan(*xs, score=score, return_lse=True)
            assert found.route == "triton"
            assert found.reason == "fused, and keeps the contract" + remark


@pytest.mark.parametrize(("tokens", "waits"), [(2, False), (600, False), (8192, True)])
def test_a_plan_names_no_way_that_the_call_would_not_take(
    tokens: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of rows are for large calls; steps and graphs have one way."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    with FakeTensorMode():
        x = torch.zeros(1, tokens, 64, device="cuda", dtype=torch.bfloat16)
        w = torch.zeros(64, device="cuda", dtype=torch.bfloat16)
        found = plan(x, x, x, score=Additive(None, None, w))
        assert found.route == "triton"
        assert ("products of rows" in found.reason) is waits
        if tokens == 2:
            assert "would allow" not in plan(x, x, x, score=Laplace(1.0), return_lse=True).reason


def test_the_operators_know_both_types_of_device() -> None:
    for operator in (triton.operators.forward, triton.operators.backward):
        assert operator.kernels["cuda"] is operator.kernels["xpu"]
        name = f"anyscore::{operator.registered}"
        assert all(
            torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in ("CUDA", "XPU")
        )


SAID = "triton: there are no kernels for meta; the reference needs 8 GiB or more. Move the tensors"


def large(device: str = "meta", tokens: int = 4096) -> tuple[torch.Tensor, ...]:
    """Return tensors whose reference needs 8 GiB for 4,096 tokens; operations make no numbers."""
    return tuple(torch.zeros(1, tokens, 64, device=device) for _ in range(3))


@pytest.mark.parametrize(
    "call",
    [
        lambda *x: attention(*x, score=Gaussian(1.0)),
        lambda *x: scores(*x[:2], score=Gaussian(1.0)),
        lambda *x: log_sum_exp(*x[:2], score=Gaussian(1.0)),
    ],
    ids=["attention", "scores", "log_sum_exp"],
)
def test_a_large_call_warns_at_the_line_of_the_caller(call: Any) -> None:
    with pytest.warns(UserWarning, match=SAID) as found:
        call(*large())
    assert [one.filename for one in found] == [__file__]


def test_a_layer_warns() -> None:
    with torch.no_grad(), pytest.warns(UserWarning, match=SAID):
        Attention("gaussian", device="meta")(*large())


def test_one_warning_for_a_kind_of_call() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for tokens in (4096, 4096, 8192, 4096):
            attention(*large(tokens=tokens), score=Gaussian(1.0))
    assert [str(one.message).count("32 GiB") for one in found] == [0, 1]


def test_calls_that_do_not_warn(no_core: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings are errors here: a plan, the reference on request, small calls, and a CPU."""
    x = large()
    assert plan(*x, score=Gaussian(1.0)).reason.endswith("the reference needs 8 GiB or more")
    attention(*x, score=Gaussian(1.0), impl="reference")
    attention(*large(tokens=1024), score=Gaussian(1.0))
    monkeypatch.setattr("anyscore.functional.attention.MUCH", 1)
    attention(*large("cpu", tokens=3), score=Gaussian(1.0))


def test_compiled_calls_do_not_warn() -> None:
    """The compiler would break the graph at a warning."""

    def call(*x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = attention(*x, score=Gaussian(1.0))
        return found

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    assert compiled(*large()).shape == (1, 4096, 64)


N, WIDTH = 128, 16
GRAPH = Edges.from_index(torch.randint(0, N, (2, 4096)), N)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(
    "mask",
    [None, Lengths(torch.tensor([N // 2, N])), Causal(), torch.rand(2, N, N) > 0.3, GRAPH],
    ids=["none", "lengths", "causal", "boolean", "edges"],
)
@pytest.mark.parametrize("name", ["additive", "laplace", "dot"])
def test_what_the_reference_allocates(name: str, mask: Any, trained: bool, dropout: float) -> None:
    """The measured peak of tensors is between the stated bytes and twice as many."""
    shape = (N, WIDTH) if mask is GRAPH else (2, N, WIDTH)
    x = [torch.randn(shape, requires_grad=trained) for _ in range(3)]
    w = torch.randn(WIDTH, requires_grad=trained)
    score = {"additive": Additive(None, None, w), "laplace": Laplace(1.0), "dot": Dot()}[name]
    options = {"score": score, "mask": mask, "dropout": dropout, "dropout_seed": 1}

    def step() -> None:
        output = attention(*x, impl="reference", **options)
        if trained:
            output.sum().backward()

    measured = peak_memory_mib(step, torch.device("cpu"))
    assert measured is not None
    stated = (plan(*x, impl="reference", **options).reference_bytes or 0) / 2**20
    print(f"stated {stated:.2f} MiB, measured {measured / stated:.2f} times as much")
    assert stated <= measured <= 2 * stated
