"""Settings that all trials of a comparison are trained with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anyscore.lab.data.task import Task
from anyscore.lab.errors import InputError
from anyscore.lab.options import MODELS, TrainingOptions


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
        if self.model not in MODELS:
            raise InputError(f"--model: expected {', '.join(MODELS)}, got {self.model!r}")
        for name in ("epochs", "batch_size", "hidden", "layers", "heads", "kv_heads"):
            number = getattr(self, name)
            if not (number is None and name == "kv_heads") and not _is_count(number):
                raise InputError(f"--{name.replace('_', '-')}: expected 1 to 65,536, got {number}")
        if not (_is_number(self.learning_rate) and 0 < self.learning_rate < math.inf):
            raise InputError(f"--learning-rate: expected more than 0, got {self.learning_rate}")
        if not (_is_number(self.dropout) and 0 <= self.dropout < 1):
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


# The default width and training steps, by whether the task is that of the dates: they are easy, a
# wide model answers them with any score, a narrow one shows what a score is worth.
_HIDDEN = {True: 32, False: 128}
_STEPS = {True: 1900, False: 1000}


def settings_for(options: TrainingOptions, task: Task, *, dates: bool, device: str) -> Settings:
    """Return the settings that a user's options mean for a task, checked.

    Args:
        dates: whether the task is that of the dates, which has defaults of its own.
        device: the device that `options.device` stands for.

    Raises:
        InputError: a setting is out of range or does not fit another.
    """
    settings = Settings(
        model=options.model,
        epochs=options.epochs or default_epochs(task, options.batch_size, _STEPS[dates]),
        batch_size=options.batch_size,
        hidden=options.hidden or _HIDDEN[dates],
        learning_rate=options.learning_rate,
        dropout=options.dropout,
        device=device,
    )
    settings.check()
    return settings


def default_epochs(task: Task, batch_size: int, steps: int) -> int:
    """Return the number of epochs, 2 to 30, that make about `steps` training steps."""
    pairs = sum(len(example.references) for example in task.train)
    return min(30, max(2, round(steps / math.ceil(pairs / batch_size))))


def _is_count(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and 1 <= x <= 65_536


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)
