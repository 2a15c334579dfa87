"""Proofs are found by name; their modules, which import SciPy and PyTorch, load when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from anyscore.lab.errors import InputError, check_name
from anyscore.lab.extras import check_installed

if TYPE_CHECKING:
    from anyscore.lab.prove.proof import Proof

MODULES = {
    "lookup": "anyscore.lab.prove.lookup",
    "middle": "anyscore.lab.prove.collinear_keys",
    "neighbours": "anyscore.lab.prove.kernel_regression",
    "longer": "anyscore.lab.prove.length",
    "width": "anyscore.lab.prove.width",
}
"""The module of each proof."""
NAMES = tuple(MODULES)
PACKAGES = {"width": "pypinyin"}
"""The packages that proofs need for their data; they are imported only in training."""


def find(names: Sequence[str]) -> list[Proof]:
    """Return the proofs of these names, all of them if there is none.

    Raises:
        InputError: there is no such proof, it is named twice, or its package is missing.
    """
    check(names)
    modules = (import_module(MODULES[name]) for name in names or NAMES)
    return [cast("Proof", module.PROOF) for module in modules]


def check(names: Sequence[str]) -> None:
    """Check the names of proofs, all of them if there is none, and the packages that they need.

    Raises:
        InputError: there is no such proof, it is named twice, or its package is missing.
    """
    for name in names:
        check_name("the proof", name, NAMES)
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise InputError(f"{', '.join(twice)}: given twice; give each proof once")
    for name in names or NAMES:
        if name in PACKAGES:
            check_installed(PACKAGES[name], f"the proof {name}", extra="lab")
