"""A pytest plugin runs Triton kernels on the CPU instead of the C++ core.

Tests of the core under PyTorch then test the Triton kernels: interpreted with TRITON_INTERPRET=1,
else compiled, in the emulator of `ptx`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter

from anyscore.backends.torch import autograd, core, operators
from anyscore.backends.torch import triton as torch_triton
from anyscore.kernels import cpu
from anyscore.kernels.triton.tiles import INTERPRETED
from anyscore.kernels.triton.untried import separable


def _refuse(*args: object) -> None:
    raise ValueError("every call goes by the operators.")


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch warns of overridden operators
    for _name in ("forward", "backward"):
        _kernel = getattr(torch_triton, _name)
        getattr(operators, _name).run_on("cpu", _kernel, allow_override=True)
cpu.again = cpu.train_again = _refuse  # these go past the operators
torch_triton._why_not_on_nvidia = lambda task, options: None
separable.capability_of = lambda device: (9 if INTERPRETED.value else 8, 0)
core.pack_keys = lambda f: None
autograd.keeps_scores = lambda x, s: False  # kernels compute scores again


_LANGUAGE = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
_patch = interpreter._patch_lang


def _call(function: Any, *args: Any, **options: Any) -> Any:
    try:
        return function.rewrite()(*args, **options)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


# The interpreter spends half of its time on patches of the language, for every function that a
# kernel calls. The lines below patch once for a kernel, for all of its functions.
interpreter._patch_lang = lambda kernel: _patch(_LANGUAGE)
interpreter.InterpretedFunction.__call__ = _call


@pytest.fixture(autouse=True)
def _compiled() -> Iterator[None]:
    """Emulate a GPU if nothing is interpreted."""
    if INTERPRETED.value:
        yield
        return
    from frameworks.triton.untried.ptx import emulated

    with emulated():
        yield


def pytest_configure(config: pytest.Config) -> None:
    # The interpreter computes with NaN and divides by 0, and NumPy warns.
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning")
