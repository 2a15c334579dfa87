"""Training of one model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from anyscore.lab.data.encoding import Encoded
from anyscore.lab.errors import TrialFailure
from anyscore.lab.train.answering import answers
from anyscore.lab.train.batches import Batch, Pairs, in_order, shuffled
from anyscore.lab.train.metrics import exact_match
from anyscore.lab.train.model import Model
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.together import ALONE, Group
from anyscore.lab.trials import Report

_WATCHED = 500  # validation sources answered after each epoch
_CLIP = 1.0  # largest norm of the gradient
_MEASURED = 256  # pairs side by side where only the loss is wanted
_SECONDS = 0.25  # between two reports of progress
_SEEDS = 2**32  # more than there are


def train(
    model: Model,
    data: Encoded,
    settings: Settings,
    *,
    seed: int,
    learning_rate: float | None = None,
    report: Report = lambda told: None,
    group: Group = ALONE,
) -> list[dict[str, Any]]:
    """Train `model`; its final parameters come from the epoch with the lowest validation loss.

    The loss decides because it averages every token of every validation pair. The exact match of a
    few hundred sources is often the same for several epochs. The order of batches and the dropout
    masks depend on the seed alone, not on the score.

    The processes of a `group` call this together; each has a shard of every batch, and dropout
    masks of its own. All end with the same parameters; the first alone computes exact match.

    Args:
        model: on the settings' device.
        data: the task in numbers.
        seed: of batches and dropout.
        learning_rate: None takes that of the settings.
        report: takes progress a few times a second, and the record of every epoch.

    Returns:
        A record per epoch, as `Outcome.epochs` has them.

    Raises:
        TrialFailure: the loss stops being a number.
    """
    device = torch.device(settings.device)
    rate = settings.learning_rate if learning_rate is None else learning_rate
    epochs: list[dict[str, Any]] = []
    best: dict[str, Tensor] = {}
    with own_randomness(seed + group.rank * _SEEDS, device):
        pairs, valid = Pairs(data.train, device), Pairs(data.valid_pairs, device)
        optimiser, loss_of = new_optimiser(model, rate), group.loss_of(model)
        progress = _Progress(settings.epochs * steps_per_epoch(data, settings), report)
        for number in range(1, settings.epochs + 1):
            start = time.perf_counter()
            batches = epoch_batches(pairs, settings.batch_size, seed, number)
            model.train()
            train_loss = _one_epoch(
                model, loss_of, pairs, batches, number, optimiser, rate, progress, group
            )
            seconds = time.perf_counter() - start
            epoch = {
                "epoch": number,
                "steps": progress.step,
                "train_loss": train_loss,
                "valid_loss": mean_loss(model, valid, group),
                "valid_exact_match": _watch(model, data) if group.rank == 0 else math.nan,
                "seconds": seconds,
            }
            _check(epoch["valid_loss"], f"after epoch {number}, in validation")
            epochs.append(epoch)
            if number == best_epoch(epochs):
                best = {name: x.clone() for name, x in model.state_dict().items()}
            report(dict(epoch))
    model.load_state_dict(best)
    return epochs


def _watch(model: Model, data: Encoded) -> float:
    """Return the exact match of the first validation sources."""
    watched = data.valid[:_WATCHED]
    outputs = [answer.tokens for answer in answers(model, data, watched)]
    return exact_match(outputs, [item.answers for item in watched])


def best_epoch(epochs: list[dict[str, Any]]) -> int:
    """Return the number of the epoch with the lowest validation loss, the first of equals."""
    best = min(epochs, key=lambda epoch: epoch["valid_loss"])
    return int(best["epoch"])


class _Progress:
    """Counts steps, and reports them a few times a second."""

    def __init__(self, steps: int, report: Report) -> None:
        self.step, self.steps = 0, steps
        self._report, self._next = report, time.monotonic()

    def advance(self) -> bool:
        """Count one more step; return whether it was reported."""
        self.step += 1
        due = time.monotonic() >= self._next
        if due:
            self._report({"step": self.step, "steps": self.steps})
            self._next = time.monotonic() + _SECONDS
        return due


def _one_epoch(
    model: Model,
    loss_of: Callable[[Batch, float], Tensor],
    pairs: Pairs,
    batches: Iterator[Tensor],
    number: int,
    optimiser: torch.optim.Optimizer,
    rate: float,
    progress: _Progress,
    group: Group,
) -> float:
    """Train on every pair once; return the loss in nats per target token, on average."""
    losses: list[Tensor] = []  # read rarely: reading waits for the GPU
    tokens: list[int] = []
    for rows in batches:
        for parameters in optimiser.param_groups:
            parameters["lr"] = rate * (1 - progress.step / progress.steps)
        loss = loss_of(*group.shard(pairs, rows))
        losses.append(_update(model, loss, optimiser) / group.size)
        tokens.append(int(pairs.targets.lengths[rows].sum()))
        # Of several processes none may stop before the others.
        if progress.advance() and group.size == 1 and not math.isfinite(losses[-1].item()):
            break
    values = group.sum(torch.stack(losses)).tolist()
    for step, value in enumerate(values, 1):
        _check(value, f"in step {step} of epoch {number}")
    return float(sum(v * t for v, t in zip(values, tokens, strict=True)) / sum(tokens))


def epoch_batches(pairs: Pairs, batch_size: int, seed: int, number: int) -> Iterator[Tensor]:
    """Yield the batches of epoch `number`, the same for every score."""
    return shuffled(pairs.sources.lengths, batch_size, seed * 10_000 + number)


def new_optimiser(model: Model, rate: float) -> torch.optim.Optimizer:
    """Make the optimiser, Adam, the same for every score."""
    return torch.optim.Adam(model.parameters(), lr=rate, fused=True)


def training_step(model: Model, batch: Batch, optimiser: torch.optim.Optimizer) -> Tensor:
    """Train one step: forward, backward, update; return the loss before the update."""
    return _update(model, model.loss(batch), optimiser)


def _update(model: Model, loss: Tensor, optimiser: torch.optim.Optimizer) -> Tensor:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
    optimiser.step()
    return loss.detach()


def _check(loss: float, when: str) -> None:
    if not math.isfinite(loss):
        raise TrialFailure(f"the loss became {loss} {when}; the trial has no result")


def steps_per_epoch(data: Encoded, settings: Settings) -> int:
    """Return how many batches the training pairs make."""
    return math.ceil(len(data.train) / settings.batch_size)


@torch.no_grad()
def mean_loss(model: Model, pairs: Pairs, group: Group = ALONE) -> float:
    """Return the loss in nats per target token, with teacher forcing and without dropout."""
    model.eval()
    total, tokens = 0.0, 0
    batches = in_order(pairs.sources.lengths, _MEASURED)
    for rows in islice(batches, group.rank, None, group.size):
        batch = pairs.batch(rows)
        total += model.loss(batch).item() * batch.tokens
        tokens += batch.tokens
    both = group.sum(torch.tensor([total, tokens], dtype=torch.float64))
    return float(both[0] / both[1])


@contextmanager
def own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's generators inside, and restore them afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Let PyTorch compute with this many threads inside; None changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def reported_failures() -> Iterator[None]:
    """Turn a lack of memory inside into a TrialFailure."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # On the CPU PyTorch raises a plain RuntimeError, which its message alone tells.
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise TrialFailure(
            "there is not enough memory; give a smaller --batch-size or --hidden"
        ) from None
