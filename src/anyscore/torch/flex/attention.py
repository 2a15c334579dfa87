"""`flex_attention`, with the arguments of PyTorch's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from anyscore.functional.attention import attention
from anyscore.functional.scores import scores as scores_of
from anyscore.masks.objects import BooleanMask, Mask
from anyscore.modifiers.biases import Bias
from anyscore.ops import Array, Ops, load
from anyscore.score import Factors, Outer, ScaledDot
from anyscore.score.base import Score
from anyscore.score.checks import check_call
from anyscore.torch.flex import masks
from anyscore.torch.flex.score_mod import Modification, NoModification, modification
from anyscore.torch.flex.trace import (
    DISTANCE,
    POSITIONS,
    Traced,
    accumulation,
    by_distance,
    call,
    numbers,
)

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import AuxRequest

STEPS = "m * score, + a bias, a function or a softcap, + a bias, -inf where masked"
"""The steps that the kernels know, for a message."""
Mod = Callable[..., Any]
Term = tuple[float, Any]


@dataclass(frozen=True, eq=False)
class OfDistance(Bias):
    """The bias Σ sign · f(b, h, kv_idx − q_idx), of traced functions f of `DISTANCE`.

    terms: (sign, f). batch: the number of sequences. dtype: of the sum.
    """

    terms: tuple[Term, ...] = ()
    batch: int = 1
    dtype: torch.dtype = torch.float32
    align: str | None = "start"
    offset: Any = None
    static = ("terms", "batch", "dtype", "align")

    def values_at(self, xp: Ops, distances: Array, heads: int | None) -> Array:
        """Return the bias (B or 1, H or 1, n)."""
        positions = {
            "b": _range(self.batch, distances.device),
            "h": _range(heads or 1, distances.device),
            DISTANCE: distances.to(torch.int32),
        }
        return _sum(self.terms, positions, self.dtype)


def flex_attention(  # noqa: PLR0913 (PyTorch's arguments)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Mod | None = None,
    block_mask: BlockMask | Mod | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: AuxRequest | None = None,
    score: Score | Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Any:
    """Attention with the arguments of `torch.nn.attention.flex_attention`, and with any score.

        output_i = Σ_j softmax_j score_mod(s(query_i, key_j), b, h, i, j) · value_j

    A call runs in anyscore's kernels, forward and backward, on a CPU too. It needs no
    torch.compile, which leaves the call as it is. These parts of score_mod and mask take memory for
    tokens: a factor, a bias of kv_idx − q_idx or of keys, one function of the score, and an
    interval of keys for each query. A function such as a softcap or a square is compiled by the
    first call that has it, see `Outer.from_formula`. Other biases and masks are arrays of the
    smallest shape that broadcasts. −∞ in place of a score is a mask, as the last step. A factor of
    positions multiplies the query, in the query's dtype. A score_mod of another form warns, and the
    definition computes it in memory for all scores.

    Args:
        query: (B, H, T_q, d).
        key: (B, H_kv, T_k, d).
        value: (B, H_kv, T_k, d_v).
        score_mod: a function (score, b, h, q_idx, kv_idx) of scalars → the new score. It is called
            once. Gradients reach the tensors that it captures. By default None, no change.
        block_mask: a `BlockMask` of PyTorch, or its mask_mod (b, h, q_idx, kv_idx) → bool without
            `create_block_mask`. A mask is kept with its `BlockMask`; a mask_mod is asked in every
            call. By default None, no mask.
        scale: multiplies the product of query and key. By default 1/√d. Not together with `score`,
            which has its own.
        enable_gqa: whether H_kv may be less than H, which it divides. By default False.
        return_lse: whether to return the log-sum-exp too, as PyTorch's deprecated argument.
        kernel_options: ignored.
        return_aux: `AuxRequest(lse=True, max_scores=True)` also returns `AuxOutput` with the
            log-sum-exp and the largest scores. The largest ones take memory for all scores, and
            have no gradients. By default None.
        score: a score of anyscore, computed before score_mod. By default None, the product.

    Returns:
        The output (B, H, T_q, d_v). With return_aux (output, AuxOutput), and with return_lse
        (output, lse), where lse is (B, H, T_q), float32 or float64. The output of a query without
        keys is zero, and its log-sum-exp is −∞.

    Raises:
        TypeError: a mod asks for the number of a scalar, as `if` does, or returns no number.
        ValueError: sizes do not fit each other, a mod returns more than one number for a pair, or
            it captures a tensor of another device.

    Source: Dong et al. 2024, Flex Attention: A Programming Model for Generating Optimized Attention
    Kernels.

    >>> import torch
    >>> from anyscore import Additive
    >>> from anyscore.torch import flex_attention
    >>> x = torch.arange(3.0).reshape(1, 1, 3, 1)
    >>> causal = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx
    >>> flex_attention(0 * x, x, x, block_mask=causal)[0, 0, :, 0]        # means of the past
    tensor([0.0000, 0.5000, 1.0000])
    >>> steep = lambda score, b, h, q_idx, kv_idx: score - 9.0 * (q_idx - kv_idx).abs()
    >>> additive = Additive(None, None, torch.ones(1))
    >>> flex_attention(x, x, x, steep, score=additive)[0, 0, :, 0]
    tensor([2.6432e-04, 1.0000e+00, 1.9999e+00])
    """
    attend = _flex_attention
    if torch.compiler.is_compiling():  # a decorator would import the whole compiler
        attend = torch.compiler.disable(attend)  # type: ignore[no-untyped-call]
    return attend(
        query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, return_aux, score
    )


def _flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Mod | None,
    block_mask: BlockMask | Mod | None, scale: float | None, enable_gqa: bool, return_lse: bool,
    return_aux: AuxRequest | None, score: Any,
) -> Any:  # fmt: skip
    _check(query, key, value, score_mod, block_mask, enable_gqa)
    if score is not None and scale is not None:
        raise ValueError("scale is for the product of query and key: give the score its own scale.")
    if return_lse and return_aux is not None:
        raise ValueError(
            "return_lse and return_aux are both given: AuxRequest(lse=True) is enough."
        )
    sizes = (*query.shape[:3], key.shape[2])
    if 0 in sizes:
        score_mod = block_mask = None  # of no pair
    positions = {name: _range(n, query.device) for name, n in zip(POSITIONS, sizes, strict=True)}
    mask = None if block_mask is None else masks.of_block_mask(block_mask, positions, query)
    with_lse = return_lse or (return_aux is not None and return_aux.lse)
    arguments = _arguments(query, key, score_mod, mask, scale, score, positions)
    found = attention(**arguments, value=value, return_lse=with_lse)
    output, lse = (found.output, found.lse) if with_lse else (found, None)
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput  # PyTorch 2.8 has none

        most = _largest(arguments) if return_aux.max_scores else None
        return output, AuxOutput(lse=lse, max_scores=most)
    return (output, lse) if return_lse else output


@torch.no_grad()
def _largest(arguments: dict[str, Any]) -> Tensor:
    """Return the largest score of each query (B, H, T_q), −∞ without keys."""
    matrix: Tensor = scores_of(**arguments)
    return torch.nn.functional.pad(matrix, (0, 1), value=-torch.inf).amax(-1)


def _arguments(
    query: Tensor, key: Tensor, mod: Mod | None, mask: Mask | None, scale: float | None, score: Any,
    positions: dict[str, Tensor],
) -> dict[str, Any]:  # fmt: skip
    """Return the arguments of `attention` for the parts of a mod, or for its definition."""
    own = ScaledDot(scale) if score is None else score
    if mod is None:
        return {"query": query, "key": key, "score": own, "mask": mask}
    result, wide = call(mod, ("score", *POSITIONS), query), accumulation(query)
    try:
        made = modification(result)
        scaled, with_factors = _score(made, query, key, score, scale, positions)
        of_sum = score is None or not (made.biases and _outer_of(score, query, key))
        bias, bias_after = _biases(made, of_sum, positions, wide)
    except NoModification as reason:
        warnings.warn(
            f"score_mod is computed in memory for all scores, queries × keys: {reason}. These "
            f"steps, in this order, need memory for tokens alone: {STEPS}.",
            stacklevel=4,
        )
        return _by_definition(query, key, result, mask, own, positions)
    if made.conditions:
        of_mod = masks.of_conditions(made.conditions, positions)
        mask = of_mod if mask is None else mask & of_mod
    return {
        "query": with_factors, "key": key, "score": scaled, "mask": mask, "bias": bias,
        "bias_after": bias_after, "softcap": made.softcap,
    }  # fmt: skip


def _score(
    made: Modification, query: Tensor, key: Tensor, score: Any, scale: float | None,
    positions: dict[str, Tensor],
) -> tuple[Any, Tensor]:  # fmt: skip
    """Return the score with the factors of a modification, and the query with those of queries."""
    if score is not None and (made.factor != 1.0 or made.factors):
        raise NoModification("a factor multiplies the score: give score= its own scale")
    for factor in made.factors:
        if isinstance(factor, Traced) and "kv_idx" in factor.depends:
            raise NoModification(f"{factor} multiplies the score: multiply the key before the call")
        query = query * numbers(factor, positions).to(query.dtype)
    if score is None:
        scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
        score = ScaledDot(scale * made.factor)
    return (score if made.outer is None else _with_outer(made.outer, score, query, key)), query


def _with_outer(outer: Outer, score: Any, query: Tensor, key: Tensor) -> Score:
    """Return a score that is followed by an outer function."""
    if not isinstance(score, Score):
        raise NoModification("a function of the score follows score=: put the function into it")
    if _outer_of(score, query, key) is not None:
        raise NoModification("a function follows the outer function of score=: one of them fits")
    kind: Any = type(score)
    given = {x.name: getattr(score, x.name) for x in fields(kind) if x.init}
    found: Score = _kind_with_outer(kind, outer)(**given)
    return found


@cache
def _kind_with_outer(kind: Any, outer: Outer) -> Any:
    """Return a class of scores of a kind, each followed by an outer function of a formula."""

    def lower(self: Score, xp: Ops, query: Array, key: Array) -> Factors:
        f: Factors = kind.lower(self, xp, query, key)
        return f._replace(outer=outer)

    _, digest = outer.name.split("@")
    return type(f"{kind.__name__}_{digest}", (kind,), {"lower": lower})  # JAX exports it by name


def _outer_of(score: Any, query: Tensor, key: Tensor) -> Outer | None:
    """Return the outer function of a score, which `bias` of `attention` would enter."""
    if not isinstance(score, Score):
        return None
    xp = load("torch")
    check_call(xp, query, key, key, score)  # of any value
    return score.lower(xp, query[..., :0, :], key[..., :0, :]).outer


def _biases(
    made: Modification, of_sum: bool, positions: dict[str, Tensor], dtype: torch.dtype
) -> tuple[Any, Any]:
    """Return `bias` and `bias_after` of a modification, in this dtype.

    of_sum: whether `bias` is added to the score, and not inside of its outer function.
    """
    if made.is_inside and made.biases and made.after:
        function = "softcap" if made.softcap else "function of the score"
        raise NoModification(f"it has biases before and after the {function}: one of them fits")
    if made.softcap and made.biases and not of_sum:
        raise NoModification("a bias before the softcap would enter the score's outer function")
    before, after = _bias(made.biases, positions, dtype), _bias(made.after, positions, dtype)
    return (before, after) if of_sum else (None, after if made.softcap else before)


def _bias(terms: list[Term], positions: dict[str, Tensor], dtype: torch.dtype) -> Any:
    """Return the sum of terms: a `Bias` if they are of distances, else a tensor; None for none."""
    if not terms:
        return None
    by = [(sign, by_distance(x)) for sign, x in terms]
    if all(x is not None for _, x in by) and any(map(_is_of_distance, by)):
        return OfDistance(tuple(by), len(positions["b"]), dtype)
    return _sum(terms, positions, dtype)


def _is_of_distance(term: Term) -> bool:
    return isinstance(term[1], Traced) and DISTANCE in term[1].depends


def _by_definition(
    query: Tensor, key: Tensor, result: Any, mask: Mask | None, score: Any,
    positions: dict[str, Tensor],
) -> dict[str, Any]:  # fmt: skip
    """Return the arguments of `attention` for a matrix of modified scores, as PyTorch has it."""
    wide = accumulation(query)
    plain = scores_of(query.to(wide), key.to(wide), score=score)
    plain = plain.expand(*(len(x) for x in positions.values()))
    made = numbers(result, positions, plain).to(wide).expand(plain.shape)
    kept = BooleanMask(made != -torch.inf)
    safe = torch.where(made == -torch.inf, 0.0, made)
    mask = kept if mask is None else mask & kept
    return {"query": query, "key": key, "score": lambda *_: safe, "mask": mask}


def _sum(terms: Sequence[Term], positions: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Return the sum of terms (sign, traced or number) for all positions, in this dtype."""
    first, *others = (sign * numbers(x, positions).to(dtype) for sign, x in terms)
    for x in others:
        first = first + x
    return first


def _range(n: int, device: torch.device) -> Tensor:
    return torch.arange(n, dtype=torch.int32, device=device)


def _check(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: Any, enable_gqa: bool
) -> None:
    """Check ranks, sizes and mods.

    Raises:
        TypeError, ValueError: a tensor has another rank or another size than the others.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}, expected a PyTorch tensor.")
        if x.dim() != 4:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, expected (batch, heads, tokens, width)."
            )
    (batch, heads), (of_keys, key_heads) = query.shape[:2], key.shape[:2]
    if of_keys not in (1, batch) or key.shape[:2] != value.shape[:2]:
        raise ValueError(
            f"query, key and value have (batch, heads) {(batch, heads)}, {tuple(key.shape[:2])} "
            f"and {tuple(value.shape[:2])}, expected a batch of {batch} or 1 and equal heads of "
            "key and value: expand the smaller one."
        )
    if heads != key_heads and not enable_gqa:
        raise ValueError(
            f"query has {heads} heads and key {key_heads}: pass enable_gqa=True to share key heads."
        )
    if heads and (not key_heads or heads % key_heads):
        raise ValueError(
            f"query has {heads} heads and key {key_heads}, expected a divisor of {heads}: repeat "
            "the heads of key and value."
        )
    if score_mod is not None and not callable(score_mod):
        raise TypeError(
            f"score_mod is a {type(score_mod).__name__}, expected a function "
            "(score, b, h, q_idx, kv_idx)."
        )
    if isinstance(block_mask, BlockMask):
        _check_block_mask(block_mask, batch, heads, (query.shape[2], key.shape[2]))
    elif block_mask is not None and not callable(block_mask):
        raise TypeError(
            f"block_mask is a {type(block_mask).__name__}, expected a BlockMask or a function "
            "(b, h, q_idx, kv_idx)."
        )


def _check_block_mask(block_mask: BlockMask, batch: int, heads: int, sizes: Any) -> None:
    *lead, queries, keys = block_mask.shape
    if (queries, keys) != sizes and block_mask.BLOCK_SIZE[0] < _WHOLE:
        raise ValueError(
            f"block_mask is for {(queries, keys)} queries and keys, and the call has {sizes}: make "
            "it by create_block_mask(mask_mod, B, H, T_q, T_k), or pass mask_mod itself."
        )
    if any(own not in (1, n) for own, n in zip(lead, (batch, heads), strict=True)):
        raise ValueError(
            f"block_mask has (B, H) = {tuple(lead)}, and the call has {(batch, heads)}: make it by "
            "create_block_mask(mask_mod, B, H, T_q, T_k) with these sizes or None."
        )


_WHOLE = 2**30
"""The block size of PyTorch's `BlockMask` that masks nothing."""
