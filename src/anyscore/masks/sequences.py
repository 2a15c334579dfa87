"""Packed sequences as a mask: tokens of all sequences one after the other, without padding.

The argument `mask` of functions and layers takes them:

    mask=Sequences(cu_seqlens)                              # self-attention in each sequence
    mask=Sequences(cu_seqlens_q, cu_seqlens_k)              # keys have other lengths
    mask=Sequences(cu_seqlens) & Causal() & Lengths(n)      # counted within each sequence
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from anyscore.masks.context import MaskContext, PackedPositions
from anyscore.masks.lowered import LoweredMask
from anyscore.masks.objects import Mask
from anyscore.masks.offsets import check_integer_vector, check_offsets, concrete_values, integers
from anyscore.ops import Array

_CUMULATIVE = "it is of cumulative lengths, [0, n₁, n₁ + n₂, …]."


@dataclass(frozen=True, eq=False)
class Sequences(Mask):
    """Packed sequences: a query may attend the keys of its own sequence.

    Queries cu_seqlens_q[s] … cu_seqlens_q[s + 1] − 1 attend keys cu_seqlens_k[s] … cu_seqlens_k[s
    + 1] − 1, as in `torch.nn.attention.varlen.varlen_attn`. All leading dimensions share the
    sequences.

    Args:
        cu_seqlens_q: (sequences + 1,), cumulative lengths: integers that never fall, from 0 to
            T_q.
        cu_seqlens_k: the same for keys, from 0 to T_k. By default None: keys share the offsets of
            queries.

    Masks combined with `Sequences` count within each sequence: positions and alignment of `Causal`
    and `Window`, and numbers of `Lengths` and `Interval`, which may be (sequences,). Boolean
    arrays and `Keys` have the axes of packed tokens.

    Values of offsets are checked unless they are traced or on an accelerator. Unchecked tokens
    after the last offset belong to no sequence: no query attends them, and they attend no key.

    Raises:
        TypeError: Offsets are not integers, or not of rank 1.
        ValueError: Offsets do not begin with 0, fall, or do not end with the number of tokens; or
            the two offsets count different numbers of sequences.

    >>> import numpy as np
    >>> from anyscore import Sequences, attention
    >>> x = np.array([[0.0], [1.0], [2.0], [3.0], [4.0]])       # lengths of 2 and 3
    >>> attention(0 * x, x, x, mask=Sequences([0, 2, 5]))[:, 0]
    array([0.5, 0.5, 3. , 3. , 3. ])
    """

    cu_seqlens_q: Any
    cu_seqlens_k: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cu_seqlens_k is self.cu_seqlens_q:
            object.__setattr__(self, "cu_seqlens_k", None)
        counts = {}
        for name, x in vars(self).items():
            if x is not None:
                check_offsets(name, check_integer_vector(x, name), _CUMULATIVE)
                counts[name] = len(x) if isinstance(x, list | tuple) else getattr(x, "shape", "?")
        counts = {name: n if isinstance(n, int) else n[0] for name, n in counts.items() if n != "?"}
        for name, n in counts.items():
            if n == 0:  # also for traced values
                raise ValueError(f"{name} must begin with 0, got no entry: {_CUMULATIVE}")
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"cu_seqlens_q has {counts['cu_seqlens_q']} entries and cu_seqlens_k "
                f"{counts['cu_seqlens_k']}, expected as many: one more than there are sequences."
            )

    def context(self, call: MaskContext) -> MaskContext:
        """Return the call with the packed positions of its queries."""
        if call.packed is not None:
            raise ValueError("two masks are Sequences: intersect their offsets, or leave one out.")
        offsets = {"cu_seqlens_q": (self.cu_seqlens_q, call.all_queries, "queries")}
        offsets["cu_seqlens_k"] = self.cu_seqlens_k, call.keys, "keys"
        if self.cu_seqlens_k is None:
            offsets["cu_seqlens_k"] = self.cu_seqlens_q, call.keys, "keys"
        found: dict[str, Array] = {}
        for name, (x, tokens, what) in offsets.items():
            array = integers(call.xp, call.array(x, name))
            values = concrete_values(call.xp, array)
            if values is not None and isinstance(tokens, int) and values[-1] != tokens:
                hint = ""
                if name == "cu_seqlens_k" and self.cu_seqlens_k is None:
                    hint = " Keys of other lengths need offsets of their own, cu_seqlens_k."
                raise ValueError(
                    f"{name} ends with {values[-1]}, expected {tokens}, the number of packed "
                    f"{what}.{hint}"
                )
            found[name] = array
        keys = None if self.cu_seqlens_k is None else found["cu_seqlens_k"]
        packed = PackedPositions.of(
            call.xp, call.all_queries, found["cu_seqlens_q"], keys, call.shard
        )
        return replace(call, packed=packed)

    def lower(self, call: MaskContext) -> LoweredMask:
        """Lower to the interval of the keys of each query's sequence.

        Raises:
            TypeError, ValueError: the offsets are of another framework, or do not fit the tokens.
        """
        call = self.context(call) if call.packed is None else call
        return call.lowered(call.of_packed("first_key"), call.of_packed("last_key"))
