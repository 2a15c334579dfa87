"""Tokens that nobody reads, zeroed: what is in them, NaN included, reaches no sum over tokens."""

from __future__ import annotations

from anyscore.ops import Array, Ops


def zero(
    xp: Ops, x: Array, used: Array, groups: int = 1, finite: bool = True
) -> tuple[Array, bool]:
    """x (..., T, d) with the rows zeroed that no head and no batch uses; `used` is (..., {1, T}).

    groups: heads of `used` per head of x. finite: zero finite entries too.
    Also whether one row of x serves several rows of `used`.
    """
    lead, reduced = xp.shape(x)[:-2], False
    if groups > 1 and len(lead) and xp.shape(used)[-2] > 1 and lead[-1] > 1:
        *outer, heads, tokens = xp.shape(used)
        used = xp.reshape(used, (*outer, heads // groups, groups, tokens))
        used, reduced = xp.any(used, axis=-2), True
    while len(xp.shape(used)) - 1 > len(lead):
        reduced = reduced or xp.shape(used)[0] > 1
        used = xp.any(used, axis=0)
    for axis in range(len(lead)):
        if lead[axis] == 1 and xp.shape(used)[axis] > 1:
            used, reduced = xp.any(used, axis=axis, keepdims=True), True
    used = used[..., None] if finite else xp.where(used[..., None], True, xp.isfinite(x))
    return xp.where(used, x, 0.0), reduced
