"""The scoring functions: formula, shapes, initialisation and source, each lowered once.

A score is a small frozen class whose fields are its parameters, oriented as in the papers. Shapes:
query (..., T_q, d_q), key (..., T_k, d_k), score (..., T_q, T_k). A parameter may have leading
dimensions, which meet those of the query (of the key, for W_k and w_k): w_v (H, h), W_q (H, h, d_q)
and sigma (H,) give each of H heads its own. A projection given as None means that the tensor comes
projected. Scales (`scale`, `sigma`, `tau`) are numbers or tensors of the shape of leading
dimensions.
"""

from anyscore.formulas.distances import Euclidean, Gaussian, Laplace, Lorentz, StudentT
from anyscore.formulas.hidden import Additive, Concat, GATv2
from anyscore.formulas.products import Bilinear, Cosine, Dot, ScaledDot, Trilinear
from anyscore.score import Score

__all__ = [
    "SCORES",
    "Additive",
    "Bilinear",
    "Concat",
    "Cosine",
    "Dot",
    "Euclidean",
    "GATv2",
    "Gaussian",
    "Laplace",
    "Lorentz",
    "ScaledDot",
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
"""The names that layers and the command line know scores by."""
