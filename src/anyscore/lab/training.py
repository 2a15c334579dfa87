"""Training a model and asking it for answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from anyscore.lab.batches import Batch, Pair, collate, in_order, pad, shuffled
from anyscore.lab.data import Task
from anyscore.lab.encoding import Encoded, Item
from anyscore.lab.model import Translator
from anyscore.lab.quality import exact_match
from anyscore.lab.tokens import BOS, EOS, PAD

_WATCHED = 500  # validation sources answered after each epoch
_CLIP = 1.0  # largest norm of the gradient


@dataclass(frozen=True)
class Settings:
    """How every score is trained: one setting for all of them.

    Attributes:
        scores: names, in the order of training.
        seed: of the initial parameters, the order of the batches and dropout.
        learning_rate: of Adam; it falls to 0 in a straight line over all steps.
        dropout: see `Translator`.
        device: as PyTorch names it.
    """

    scores: tuple[str, ...]
    seed: int = 0
    epochs: int = 6
    batch_size: int = 64
    hidden: int = 128
    learning_rate: float = 4e-3
    dropout: float = 0.1
    device: str = "cpu"


class ScoreFailure(Exception):
    """Training with this score cannot go on; the text says why in one line."""


@dataclass(frozen=True)
class Answer:
    """What the model says to one source.

    Attributes:
        tokens: the output, "</s>" excluded; "<unk>" stays.
        complete: whether it ended by itself, with "</s>".
        weights: (rows, T_k), a row per token and one for "</s>"; None if not asked for.
    """

    tokens: tuple[str, ...]
    complete: bool
    weights: Tensor | None = None


def train(
    model: Translator,
    data: Encoded,
    settings: Settings,
    record: dict[str, Any],
    *,
    on_step: Callable[[], None] = lambda: None,
    on_epoch: Callable[[dict[str, Any]], None] = lambda epoch: None,
) -> None:
    """Train `model`, writing what is learnt about it into `record` as soon as it is known.

    `record["epochs"]` grows with every epoch, so that an interrupt leaves what was done.

    The order of batches and the dropout masks depend on the seed alone, not on the score.

    Raises:
        ScoreFailure: when the loss stops being a number.
    """
    device = torch.device(settings.device)
    with own_randomness(settings.seed, device):
        optimiser = new_optimiser(model, settings)
        steps = settings.epochs * steps_per_epoch(data, settings)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
        for number in range(1, settings.epochs + 1):
            start = time.perf_counter()
            train_loss = _one_epoch(model, data, settings, number, optimiser, schedule, on_step)
            seconds = time.perf_counter() - start
            watched = data.valid[:_WATCHED]
            outputs = [answer.tokens for answer in answers(model, data, watched)]
            epoch = {
                "epoch": number,
                "train_loss": train_loss,
                "valid_loss": mean_loss(model, data.valid_pairs, settings.batch_size),
                "valid_exact_match": exact_match(outputs, [item.answers for item in watched]),
                "seconds": seconds,
            }
            _check(epoch["valid_loss"], f"after epoch {number}, in validation")
            record["epochs"].append(epoch)
            on_epoch(epoch)


def _one_epoch(
    model: Translator,
    data: Encoded,
    settings: Settings,
    number: int,
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    on_step: Callable[[], None],
) -> float:
    """Train on every pair once. Nats per target token, on average."""
    device = torch.device(settings.device)
    model.train()
    total, tokens = 0.0, 0
    for step, pairs in enumerate(epoch_batches(data, settings, number), 1):
        batch = collate(pairs, device)
        value = training_step(model, batch, optimiser).item()
        schedule.step()
        _check(value, f"in step {step} of epoch {number}")
        total += value * batch.tokens
        tokens += batch.tokens
        on_step()
    return total / tokens


def epoch_batches(data: Encoded, settings: Settings, number: int) -> Iterator[list[Pair]]:
    """The batches of epoch `number`, the same for every score."""
    return shuffled(data.train, settings.batch_size, settings.seed * 10_000 + number)


def new_optimiser(model: Translator, settings: Settings) -> torch.optim.Optimizer:
    """Adam, the same for every score."""
    return torch.optim.Adam(model.parameters(), lr=settings.learning_rate)


def training_step(model: Translator, batch: Batch, optimiser: torch.optim.Optimizer) -> Tensor:
    """Forward, backward and update; the loss before the update."""
    loss = batch_loss(model, batch)
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
    optimiser.step()
    return loss.detach()


def batch_loss(model: Translator, batch: Batch) -> Tensor:
    """Nats per target token of a batch, with teacher forcing."""
    logits = model(batch.source, batch.lengths, batch.inputs)
    return cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=PAD)


def _check(loss: float, when: str) -> None:
    if not math.isfinite(loss):
        raise ScoreFailure(f"the loss became {loss} {when}; a score that fails has no result")


def default_epochs(task: Task, batch_size: int, steps: int) -> int:
    """As many as make about `steps` steps, but 2 to 30."""
    pairs = sum(len(example.references) for example in task.train)
    return min(30, max(2, round(steps / math.ceil(pairs / batch_size))))


def steps_per_epoch(data: Encoded, settings: Settings) -> int:
    """How many batches the training pairs make."""
    return math.ceil(len(data.train) / settings.batch_size)


@torch.no_grad()
def mean_loss(model: Translator, pairs: Sequence[Pair], batch_size: int) -> float:
    """Nats per target token, with teacher forcing and without dropout."""
    model.eval()
    device = model.to_logits.weight.device
    total, tokens = 0.0, 0
    for part in in_order(pairs, batch_size):
        batch = collate(part, device)
        total += batch_loss(model, batch).item() * batch.tokens
        tokens += batch.tokens
    return total / tokens


def answers(
    model: Translator, data: Encoded, items: Sequence[Item], *, return_weights: bool = False
) -> list[Answer]:
    """The model's greedy output for each item, in the order of `items`."""
    model.eval()
    device = model.to_logits.weight.device
    order = sorted(range(len(items)), key=lambda i: len(items[i].numbers))
    found: dict[int, Answer] = {}
    for start in range(0, len(order), 128):
        part = order[start : start + 128]
        source, lengths = pad([items[i].numbers for i in part])
        outputs, weights = model.greedy(
            source.to(device),
            lengths,
            start=BOS,
            end=EOS,
            limit=data.limit,
            return_weights=return_weights,
        )
        for place, (i, numbers) in enumerate(zip(part, outputs, strict=True)):
            found[i] = Answer(
                tokens=tuple(data.target_vocabulary.decode(numbers)),
                complete=numbers[-1] == EOS,
                weights=weights[place] if return_weights else None,
            )
    return [found[i] for i in range(len(items))]


@contextmanager
def own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, PyTorch's generators start from `seed`; outside, they are as if nothing was drawn."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def reported_failures() -> Iterator[None]:
    """Turns a lack of memory into a ScoreFailure."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # On the CPU PyTorch raises a plain RuntimeError, which its message alone tells.
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise ScoreFailure(
            "there is not enough memory; give a smaller --batch-size or --hidden"
        ) from None
