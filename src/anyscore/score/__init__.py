"""The scoring functions: formula, shapes, initialisation and source, each lowered once.

    base        `Score`: the base class of scores
    products, distances, hidden    the thirteen scores
    factors     the one form that every score takes
    pairs       the elementwise functions of that form, and their registry
    outer       functions of the whole sum: a cap, a root, a logarithm
    formula/    pairs written as formulas: read, differentiated, computed in any framework
    scales      parameters that are numbers or tensors
    checks      checks of a score together with the tensors of a call

A score is a small frozen class. Its fields are its parameters, oriented as in the papers. Shapes:
query (..., T_q, d_q), key (..., T_k, d_k), score (..., T_q, T_k). A parameter may have leading
dimensions, which broadcast with the query's; W_k and w_k broadcast with the key's. For example w_v
(H, h), W_q (H, h, d_q) and sigma (H,) differ between H heads. A projection given as None means an
input that is projected already. Scales (`scale`, `sigma`, `tau`) are numbers or tensors of the
shape of leading dimensions.

Imports `ops` alone. Start with `factors`, then `distances`.
"""

from anyscore.score.base import Init, Projection, Score
from anyscore.score.distances import Euclidean, Gaussian, Laplace, Lorentz, StudentT
from anyscore.score.factors import Factors
from anyscore.score.hidden import Additive, Concat, GATv2
from anyscore.score.outer import Outer
from anyscore.score.pairs import ABSOLUTE, LEAKY_RELU, PRODUCT, SQUARED, TANH, Pair
from anyscore.score.products import Bilinear, Cosine, Dot, ScaledDot, Trilinear

__all__ = [
    "ABSOLUTE",
    "LEAKY_RELU",
    "PRODUCT",
    "SCORES",
    "SQUARED",
    "TANH",
    "Additive",
    "Bilinear",
    "Concat",
    "Cosine",
    "Dot",
    "Euclidean",
    "Factors",
    "GATv2",
    "Gaussian",
    "Init",
    "Laplace",
    "Lorentz",
    "Outer",
    "Pair",
    "Projection",
    "ScaledDot",
    "Score",
    "StudentT",
    "Trilinear",
]

SCORES: dict[str, type[Score]] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "bilinear": Bilinear,
    "cosine": Cosine,
    "trilinear": Trilinear,
    "gaussian": Gaussian,
    "laplace": Laplace,
    "euclidean": Euclidean,
    "student_t": StudentT,
    "lorentz": Lorentz,
    "additive": Additive,
    "concat": Concat,
    "gatv2": GATv2,
}
"""Scores by the names that layers and the command line take."""
