"""Attention with any scoring function, from any framework.

    from anyscore import Additive, Causal, Lengths, attention

    output = attention(query, key, value, score=Additive(W_q, W_k, w_v), mask=Causal())

Layers live in a module per framework: `anyscore.torch`. No framework is imported before its tensors
or its module are used.
"""

from anyscore.call.backend import Plan
from anyscore.functional.attention import AttentionOutput, attention, plan
from anyscore.functional.cache.cache import Cache
from anyscore.functional.cache.make import make_cache
from anyscore.functional.cache.prepare import PreparedKeys, prepare_keys
from anyscore.functional.layouts import Contiguous, Uneven, Zigzag
from anyscore.functional.scores import log_sum_exp, log_weights, scores
from anyscore.masks.edges import Edges
from anyscore.masks.objects import Causal, Interval, Keys, Lengths, Mask, Window
from anyscore.masks.sequences import Sequences
from anyscore.modifiers.biases import ALiBi, Relative
from anyscore.modifiers.normalizers import Sigmoid
from anyscore.ops.pytrees import register_pytrees
from anyscore.plot.recording import Recording, record
from anyscore.score import (
    Additive,
    Bilinear,
    Concat,
    Cosine,
    Dot,
    Euclidean,
    GATv2,
    Gaussian,
    Laplace,
    Lorentz,
    Pair,
    ScaledDot,
    Score,
    StudentT,
    Trilinear,
)

register_pytrees()  # in frameworks imported before; the others with their first tensors or layers

__version__ = "0.1.0"

__all__ = [
    "ALiBi",
    "Additive",
    "AttentionOutput",
    "Bilinear",
    "Cache",
    "Causal",
    "Concat",
    "Contiguous",
    "Cosine",
    "Dot",
    "Edges",
    "Euclidean",
    "GATv2",
    "Gaussian",
    "Interval",
    "Keys",
    "Laplace",
    "Lengths",
    "Lorentz",
    "Mask",
    "Pair",
    "Plan",
    "PreparedKeys",
    "Recording",
    "Relative",
    "ScaledDot",
    "Score",
    "Sequences",
    "Sigmoid",
    "StudentT",
    "Trilinear",
    "Uneven",
    "Window",
    "Zigzag",
    "attention",
    "log_sum_exp",
    "log_weights",
    "make_cache",
    "plan",
    "prepare_keys",
    "record",
    "scores",
]
