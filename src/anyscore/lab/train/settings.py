"""Settings that all trials of a comparison are trained with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anyscore.lab.errors import InputError, check_name
from anyscore.lab.forms import is_number

MODELS = ("recurrent", "bahdanau", "transformer", "pointer", "tagger", "classifier")
"""The names of the models; see `train.models`."""


@dataclass(frozen=True)
class Settings:
    """Settings that all trials share; score and seed are the trial's.

    Attributes:
        model: a name in `MODELS`.
        epochs: passes over the training pairs.
        batch_size: pairs in a training step.
        hidden: width of embeddings, states, queries and keys.
        learning_rate: of Adam, if a trial has none of its own; it falls to 0 in a straight line
            over all steps.
        dropout: rate, of embeddings and of the last layer's input, in training only.
        layers, heads: of a Transformer, in encoder and decoder each.
        kv_heads: heads of keys and values, a divisor of `heads`; None is as many.
        device: as PyTorch names it.
    """

    model: str = "recurrent"
    epochs: int = 6
    batch_size: int = 64
    hidden: int = 128
    learning_rate: float = 4e-3
    dropout: float = 0.1
    layers: int = 2
    heads: int = 4
    kv_heads: int | None = None
    device: str = "cpu"

    def check(self) -> None:
        """Raise InputError, in one line, if a setting is out of range or does not fit another."""
        check_name("--model", self.model, MODELS)
        for name in ("epochs", "batch_size", "hidden", "layers", "heads", "kv_heads"):
            number = getattr(self, name)
            if number is None and name == "kv_heads":
                continue
            if not (is_number(number) and isinstance(number, int) and 1 <= number <= 65_536):
                raise InputError(f"--{name.replace('_', '-')}: expected 1 to 65,536, got {number}")
        rate = self.learning_rate
        if type(rate) not in (int, float) or not 0 < rate < math.inf:
            raise InputError(f"--learning-rate: expected more than 0, got {rate}")
        if not (is_number(self.dropout) and 0 <= self.dropout < 1):
            raise InputError(f"--dropout: expected at least 0 and less than 1, got {self.dropout}")
        if self.model == "transformer":
            if self.hidden % self.heads:
                raise InputError(
                    f"--hidden: expected a multiple of the {self.heads} heads, got {self.hidden}"
                )
            if self.kv_heads and self.heads % self.kv_heads:
                raise InputError(
                    f"--kv-heads: expected a divisor of the {self.heads} heads, got {self.kv_heads}"
                )
