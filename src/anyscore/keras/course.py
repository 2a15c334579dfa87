"""The masked softmax and the attention classes of *Dive into Deep Learning*."""

from __future__ import annotations

from typing import Any, ClassVar

import keras

from anyscore.backends.reference.definition import masked_softmax as _masked_softmax
from anyscore.call.lowering import combine
from anyscore.keras.attention import Attention
from anyscore.keras.layer import register, xp
from anyscore.layers import course
from anyscore.layers.texts import with_texts


@with_texts
def masked_softmax(X: Any, valid_lens: Any = None, *, mask: Any = None) -> Any:
    """
    {masked_softmax}

    >>> import keras
    >>> import numpy as np
    >>> weights = masked_softmax(np.zeros((1, 2, 4)), [[1, 4]])
    >>> print(keras.ops.convert_to_numpy(weights))
    [[[1.   0.   0.   0.  ]
      [0.25 0.25 0.25 0.25]]]
    """
    return _masked_softmax(xp, keras.ops.convert_to_tensor(X), combine(mask, valid_lens))


_SIZES = {"dropout": "dropout", "query_size": "d_q", "key_size": "d_k", "bias": "bias"}


class _Course(Attention):
    """An `Attention` whose constructor, and so its config, has other arguments."""

    own_names: ClassVar[dict[str, str]] = {"dropout": "dropout"}
    """Names of the arguments → names in `Attention`."""

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor for Keras to save."""
        config, given = super().get_config(), dict(self.record.arguments)
        rest = {name: x for name, x in config.items() if name not in given}
        own = {name: given.pop(of_attention) for name, of_attention in self.own_names.items()}
        del given["score"]
        return rest | own | {x: y for x, y in given.items() if y is not None and y is not False}


@register
@with_texts
class DotProductAttention(course.DotProductAttention, _Course):
    """
    {dot_product}

    >>> import keras
    >>> import numpy as np
    >>> from anyscore.keras import DotProductAttention
    >>> layer, keys = DotProductAttention(), np.ones((2, 10, 2))
    >>> values = np.arange(40.0).reshape(1, 10, 4).repeat(2, axis=0)
    >>> output = layer(np.ones((2, 1, 2)), keys, values, valid_lens=[2, 6])
    >>> print(keras.ops.convert_to_numpy(output)[:, 0])
    [[ 2.  3.  4.  5.]
     [10. 11. 12. 13.]]
    """


@register
@with_texts
class AdditiveAttention(course.AdditiveAttention, _Course):
    """
    {additive}

    >>> import numpy as np
    >>> from anyscore.keras import AdditiveAttention
    >>> layer = AdditiveAttention(8, dropout=0.1)
    >>> output = layer(np.ones((2, 1, 20)), np.ones((2, 10, 2)), valid_lens=[2, 6])
    >>> tuple(output.shape), layer.count_params()           # 8 · 20 + 8 · 2 + 8
    ((2, 1, 2), 184)
    """

    own_names: ClassVar[dict[str, str]] = {"num_hiddens": "hidden", **_SIZES}


@register
@with_texts
class MLPAttention(course.MLPAttention, AdditiveAttention):
    """
    {mlp}

    >>> import numpy as np
    >>> from anyscore.keras import MLPAttention
    >>> layer = MLPAttention(units=8, dropout=0.1)
    >>> tuple(layer(np.ones((2, 1, 20)), np.ones((2, 10, 2)), valid_lens=[2, 6]).shape)
    (2, 1, 2)
    """

    own_names: ClassVar[dict[str, str]] = {"units": "hidden", **_SIZES}
