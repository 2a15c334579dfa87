"""Attention with any scoring function, from any framework.

    from anyscore import Additive, Causal, Lengths, attention

    output = attention(query, key, value, score=Additive(W_q, W_k, w_v), mask=Causal())

Layers live in a module per framework: `anyscore.torch`. No framework is imported before its tensors
or its module are used.
"""

from anyscore.biases import ALiBi, Relative
from anyscore.cache import PreparedKeys, prepare_keys
from anyscore.edges import Edges
from anyscore.formulas import (
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
    ScaledDot,
    StudentT,
    Trilinear,
)
from anyscore.functional import AttentionOutput, attention, plan
from anyscore.growing import Cache
from anyscore.implementations import Plan
from anyscore.masks import Causal, Interval, Keys, Lengths, Mask, Window
from anyscore.new_cache import make_cache
from anyscore.normalizers import Sigmoid
from anyscore.ops.pytrees import tell
from anyscore.recording import Recording, record
from anyscore.score import Score
from anyscore.score_matrix import log_sum_exp, log_weights, scores
from anyscore.sequences import Sequences

tell()  # frameworks imported before; the others with their first tensors, or with their layers

__version__ = "0.1.0"

__all__ = [
    "ALiBi",
    "Additive",
    "AttentionOutput",
    "Bilinear",
    "Cache",
    "Causal",
    "Concat",
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
    "Window",
    "attention",
    "log_sum_exp",
    "log_weights",
    "make_cache",
    "plan",
    "prepare_keys",
    "record",
    "scores",
]
