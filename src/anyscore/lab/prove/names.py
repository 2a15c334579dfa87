"""The proofs by name. Their modules import SciPy and PyTorch: they wait until asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from anyscore.lab.errors import InputError
from anyscore.lab.extras import check_installed
from anyscore.ops.checks import shown, suggest

if TYPE_CHECKING:
    from anyscore.lab.prove.proof import Proof

NAMES = ("lookup", "middle", "neighbours", "longer", "width")
PACKAGES = {"width": "pypinyin"}
"""The packages that proofs need for their data; they are imported only in training."""


def find(names: Sequence[str]) -> list[Proof]:
    """Return the proofs of these names, all of them if there is none.

    Raises:
        InputError: there is no such proof, it is named twice, or its package is missing.
    """
    check(names)
    modules = (import_module(f"anyscore.lab.prove.{name}") for name in names or NAMES)
    return [cast("Proof", module.PROOF) for module in modules]


def check(names: Sequence[str]) -> None:
    """Check the names of proofs, all of them if there is none, and the packages that they need.

    Raises:
        InputError: there is no such proof, it is named twice, or its package is missing.
    """
    for name in names:
        if name not in NAMES:
            raise InputError(
                f"there is no proof {shown(name)}; {suggest(name, NAMES)}there are "
                f"{', '.join(NAMES)}"
            )
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise InputError(f"{', '.join(twice)}: given twice; give each proof once")
    for name in names or NAMES:
        if name in PACKAGES:
            check_installed(PACKAGES[name], f"the proof {name}", extra="lab")
