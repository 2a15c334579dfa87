"""A sink: one more logit in the softmax, which takes weight and has no value.

    weights_ij = e^s_ij / (e^sink + Σ_l e^s_il)      over the attended keys l

Let lse_i be the log-sum-exp of the scores alone. A sink multiplies weights and output by the factor
e^lse_i / (e^lse_i + e^sink). `apply_sink` does so, and kernels compute without a sink.

Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.3.
Learned for each head: OpenAI 2025, gpt-oss. Fixed at 0: Miller 2023, "Attention is Off By One".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from anyscore.modifiers.normalizers import stats_of
from anyscore.ops import DTYPES, Array, Ops, accumulated, accumulation, framework
from anyscore.ops.checks import Sizes, brief, broadcasts, check_devices, find_framework


def check_sink(xp: Ops, sink: Any, query: Array, sizes: Sizes) -> None:
    """Check that a sink is a number, or a tensor on the device of the query.

    A tensor must broadcast to the leading dimensions (..., heads) of the output. (heads,) differs
    between query heads, (batch, heads) also between batch entries.

    Raises:
        TypeError, ValueError: the sink is no finite number or tensor, or does not broadcast.
    """
    if framework(sink) is None:
        if isinstance(sink, bool) or not isinstance(sink, Real):
            raise TypeError(f"sink must be a number, or a tensor (heads,), got {brief(sink)}.")
        check_finite(sink, accumulation(xp.dtype(query)))
        return
    find_framework(query=query, sink=sink)
    check_devices(xp, query, sink=sink)
    shape, dtype = xp.shape(sink), xp.dtype(sink)
    if dtype not in DTYPES:
        raise TypeError(f"sink is {dtype}, expected one of {', '.join(DTYPES)}.")
    lead = sizes.lead
    if not broadcasts(shape, lead):
        heads = f" or {lead[-1:]}, one number for each query head," if len(lead) > 1 else ""
        raise ValueError(
            f"sink has shape {shape}, expected (){heads} or what broadcasts to {lead}, the leading "
            "dimensions of the output."
        )


def check_finite(sink: Any, dtype: str = "float64") -> None:
    """Check that a number given as a sink is finite, also in a dtype.

    Raises:
        ValueError: the number is infinite or NaN.
    """
    if not abs(sink) < (1e308 if dtype == "float64" else 1e38):
        where = "" if sink != sink or sink in (math.inf, -math.inf) else f" in {dtype}"
        raise ValueError(f"sink must be finite{where}, got {brief(sink)}: leave it out for none.")


def apply_sink(
    xp: Ops, sink: Any, stats: Array, align: Callable[[Array], Array],
    output: Array | None = None, weights: Array | None = None, log_weights: Array | None = None,
) -> tuple[Array, Array | None, Array | None, Array | None]:  # fmt: skip
    """Apply a sink to the results of a call without it; only here a sink gets its gradient.

    stats: (..., 2, T_q) of the scores alone, as `normalizers.softmax` returns them. align: function
    of numbers (..., T_q) that returns them broadcastable against the scores. output (..., T_q,
    d_v), weights, log_weights: without the sink; None if not requested.

    Returns (stats, output, weights, log_weights), with the sink.
    """
    share, log_share, stats = with_sink(xp, sink, stats)
    if output is not None:
        output = xp.astype(accumulated(xp, output) * share[..., None], xp.dtype(output))
    if weights is not None:
        weights = weights * align(share)
    if log_weights is not None:
        log_weights = log_weights + align(log_share)
    return stats, output, weights, log_weights


def with_sink(xp: Ops, sink: Any, stats: Array) -> tuple[Array, Array, Array]:
    """Return e^lse / (e^lse + e^sink), its logarithm, each (..., T_q), and stats with the sink.

    stats: (..., 2, T_q) of the scores alone, as `normalizers.softmax` returns them. A query without
    scores has the factor 0, and the sink as its log-sum-exp.
    """
    most, log_sum = stats[..., 0, :], stats[..., 1, :]
    if framework(sink):
        sink = xp.reshape(xp.astype(sink, xp.dtype(most)), (*xp.shape(sink), 1))  # () has no [...]
    nothing = most == -math.inf
    safe = xp.where(nothing, sink, most)
    top = xp.stop_gradient(xp.where(safe > sink, safe, sink + 0 * safe))
    top = xp.where(top == -math.inf, 0.0, top)
    log_keys = (safe - top) + log_sum
    of_keys = xp.where(nothing, 0.0, xp.exp(log_keys))
    both = of_keys + xp.exp(sink - top)
    log_both = xp.log(both)
    log_share = xp.where(nothing, -math.inf, log_keys - log_both)
    return of_keys / both, log_share, stats_of(xp, top, log_both)
