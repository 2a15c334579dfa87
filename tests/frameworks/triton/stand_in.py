"""A pytest plugin: the Triton kernels, interpreted on the CPU, in the place of the C++ core.

Whatever is tested of the core under PyTorch is then tested of them.
"""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("set TRITON_INTERPRET=1: these tests need no GPU")

from anyscore.backends.torch import autograd, core, operators
from anyscore.backends.torch import triton as torch_triton
from anyscore.kernels import cpu


def _refuse(*args: object) -> None:
    raise ValueError("every call goes by the operators.")


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that an operator is overridden
    for _name in ("forward", "backward"):
        _kernel = getattr(torch_triton, _name)
        getattr(operators, _name).run_on("cpu", _kernel, allow_override=True)
cpu.again = cpu.train_again = _refuse  # which go past the operators, to the core
core.pack_keys = lambda f: None
autograd.keeps_scores = lambda x, s: False  # which their backward computes again


_LANGUAGE = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
_patch = interpreter._patch_lang


def _call(function: Any, *args: Any, **options: Any) -> Any:
    try:
        return function.rewrite()(*args, **options)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


# The interpreter patches the language for every function that a kernel calls, which takes half of
# its time: here once for a kernel, with all that its functions see.
interpreter._patch_lang = lambda kernel: _patch(_LANGUAGE)
interpreter.InterpretedFunction.__call__ = _call


def pytest_configure(config: pytest.Config) -> None:
    # The interpreter computes with NaN and divides by 0, and NumPy says so.
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning")
