"""The laboratory: which scoring function suits your data, or your own model.

README.md in this folder says which file has which idea.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyscore.lab.trials import Outcome as Outcome
    from anyscore.lab.your_model import compare as compare


def __getattr__(name: str) -> Any:
    """Import a public name when a caller asks for it: SciPy takes its time."""
    if name == "compare":
        from anyscore.lab.your_model import compare

        return compare
    if name == "Outcome":
        from anyscore.lab.trials import Outcome

        return Outcome
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
