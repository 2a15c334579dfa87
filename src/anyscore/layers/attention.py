"""Parts of `Attention` in every framework: checked options, scores, prepared keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyscore.call.lowering import lower_mask
from anyscore.functional.cache.prepare import PreparedKeys, prepare_keys
from anyscore.functional.scores import scores
from anyscore.layers.last_weights import LastWeights, T
from anyscore.layers.parameters import AnyScore, Parameter
from anyscore.layers.score_spec import BoundScore, ScoreSpec
from anyscore.modifiers.biases import lower_biases
from anyscore.modifiers.normalizers import Normalizer, check_normalizer
from anyscore.ops import FRAMEWORKS, Array, Ops, framework
from anyscore.ops.checks import check_options, check_tensors
from anyscore.score.base import Score


class AttentionOptions:
    """The arguments of `Attention` in every framework, checked."""

    dropout: float
    impl: str
    softcap: float
    normalizer: Normalizer
    _spec: ScoreSpec

    def _set_options(
        self,
        layer_framework: str,
        score: AnyScore,
        sizes: Mapping[str, Any],
        dropout: float,
        impl: str,
        softcap: float,
        sink: bool | float | None,
        normalizer: Normalizer,
    ) -> None:
        """Check and keep the options.

        layer_framework: its name. sizes: the other arguments of `ScoreSpec`.

        Raises:
            TypeError, ValueError: an unknown score or argument, a missing size, or a score of
                tensors of another framework.
        """
        _check_tensors_of(score, layer_framework)
        check_options(dropout, None, impl, softcap)
        check_normalizer(normalizer, sink=sink)
        self._spec = ScoreSpec(score, sink=sink, **sizes)
        self.dropout, self.impl, self.softcap = dropout, impl, softcap
        self.normalizer = normalizer

    def _describe(self) -> str:
        """Describe the layer for its repr: the score, and the options that are not the default."""
        sink = self._spec.sink
        sink = True if isinstance(sink, Parameter) else sink
        parts = [str(self._spec), f"dropout={self.dropout}"]
        parts += [f"softcap={self.softcap}"] if self.softcap else []
        parts += [] if sink is None else [f"sink={sink}"]
        parts += [] if self.normalizer == "softmax" else [f"normalizer={self.normalizer!r}"]
        return ", ".join(parts)


def _check_tensors_of(score: Any, layer_framework: str) -> None:
    for field, x in score.tensors().items() if isinstance(score, Score) else ():
        if (name := framework(x) or "") != layer_framework:
            raise TypeError(
                f"{type(score).__name__}.{field} is a {FRAMEWORKS[name]} tensor, expected one of "
                f"{FRAMEWORKS[layer_framework]}, as the layer."
            )


class AttentionLayer(AttentionOptions, LastWeights[T]):
    """An `Attention` with its own parameters. The first call creates them if widths are unknown."""

    _bound: BoundScore | None = None

    def _meet(
        self, queries: T, keys: T, values: T, valid_lens: Any, mask: Any, bias: Any, bias_after: Any
    ) -> None:
        """Check the tensors of a call; create the parameters at the first call.

        Raises:
            TypeError, ValueError: wrong tensors; at the first call also a wrong mask or bias.
        """
        raise NotImplementedError

    def _score(self, like: T) -> Any:
        """Build the score from the current parameters, for tokens like `like`."""
        raise NotImplementedError

    def scores(
        self,
        queries: T,
        keys: T | PreparedKeys,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
    ) -> T:
        """Return the matrix of scores, differentiable, as `anyscore.scores`.

        Args:
            queries: (..., T_q, d_q).
            keys: (..., T_k, d_k), or `PreparedKeys`.
            valid_lens, mask, bias, bias_after: as for a call of the layer.

        Returns:
            Scores (..., T_q, T_k), float32 or float64; −∞ where the mask forbids a key.

        Raises:
            TypeError, ValueError: As `anyscore.scores`; or widths are not those of the layer.

        >>> import torch
        >>> from anyscore.torch import Attention
        >>> layer = Attention("gaussian", d_q=4, d_k=4)
        >>> layer.scores(torch.ones(2, 3, 4), torch.ones(2, 5, 4), torch.tensor([2, 5])).shape
        torch.Size([2, 3, 5])
        """
        tensor: Any = keys.key if isinstance(keys, PreparedKeys) else keys
        self._meet(queries, tensor, tensor, valid_lens, mask, bias, bias_after)
        given = {"mask": mask, "valid_lens": valid_lens, "bias": bias, "bias_after": bias_after}
        options: Any = {"softcap": self.softcap, "impl": self.impl}
        found: T = scores(queries, keys, score=self._score(queries), **given, **options)
        return found

    def prepare_keys(self, keys: T, valid_lens: Any = None, *, mask: Any = None) -> PreparedKeys:
        """Prepare keys for many calls of the layer, as `anyscore.prepare_keys`.

        Args:
            keys: (..., T_k, d_k).
            valid_lens, mask: keys that no query of any call may attend, as for
                `anyscore.prepare_keys`.

        Returns:
            `PreparedKeys`, for calls `layer(queries, prepared, values)`.

        Raises:
            TypeError, ValueError: As `anyscore.prepare_keys`; or the layer does not know its
                widths yet.

        >>> import torch
        >>> from anyscore.torch import Attention
        >>> layer, keys = Attention("additive", hidden=8, d_q=20, d_k=2), torch.ones(2, 10, 2)
        >>> prepared, queries = layer.prepare_keys(keys), torch.ones(2, 1, 20)
        >>> torch.allclose(layer(queries, prepared), layer(queries, keys))
        True
        """
        if self._bound is None:
            raise ValueError("give the layer d_q= and d_k=, or call it once, to prepare keys.")
        return prepare_keys(keys, self._score(keys), mask=mask, valid_lens=valid_lens)


def check_first_call(
    xp: Ops,
    queries: Array,
    keys: Array,
    values: Array,
    valid_lens: Any,
    mask: Any,
    bias: Any,
    bias_after: Any,
) -> None:
    """Check the first call of a layer before the layer creates its parameters.

    Raises:
        TypeError, ValueError: tensors, a mask or a bias that do not fit.
    """
    sizes = check_tensors(xp, queries, keys, values)
    lower_mask(xp, sizes, queries, mask, valid_lens)
    lower_biases(xp, bias, bias_after, queries, sizes)
