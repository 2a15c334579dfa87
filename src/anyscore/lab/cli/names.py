"""Names of scores as they are typed."""

from __future__ import annotations

from difflib import get_close_matches

from anyscore.lab.errors import InputError
from anyscore.layers import SCORES

_OTHER_NAMES = {
    "bahdanau": "additive", "mlp": "additive", "luong": "bilinear", "general": "bilinear",
    "multiplicative": "bilinear", "vaswani": "scaled_dot", "rbf": "gaussian", "gat": "gatv2",
}  # fmt: skip
"""Names that papers give to a score, and ours."""


def score_names(text: str) -> tuple[str, ...]:
    """The names in `--scores`, in the order given."""
    if text.strip().lower() == "all":
        return tuple(SCORES)
    names = [name for name in (part.strip() for part in text.split(",")) if name]
    if not names:
        raise InputError(f"--scores: expected names, got none; there are {', '.join(SCORES)}")
    for name in names:
        if name not in SCORES:
            known = _OTHER_NAMES.get(name.lower())
            near = [known] if known else get_close_matches(name.lower(), SCORES, n=1, cutoff=0.5)
            meant = f"did you mean {near[0]}? " if near else ""
            shown = name if len(name) < 60 else f"{name[:57]}…"
            raise InputError(
                f"--scores: there is no score {shown!r}; {meant}there are {', '.join(SCORES)}"
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"--scores: {', '.join(twice)} given twice; give each score once")
    return tuple(names)
