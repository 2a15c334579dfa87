"""What a training step costs with each score, measured side by side."""

from __future__ import annotations

import statistics
from itertools import cycle, islice

import torch

from anyscore.lab.batches import Batch, collate
from anyscore.lab.encoding import Encoded
from anyscore.lab.measure import now, peak_memory_mib
from anyscore.lab.model import Translator
from anyscore.lab.training import (
    Settings,
    batch_loss,
    epoch_batches,
    new_optimiser,
    own_randomness,
    training_step,
)

_WARM_UP = 2  # rounds that do not count
_ROUNDS = 25
_SECONDS = 2.0  # per score; after that `_FEWEST` rounds will do
_FEWEST = 3


def step_times(
    models: dict[str, Translator], data: Encoded, settings: Settings
) -> dict[str, float]:
    """Milliseconds of a training step (forward, backward, update) of each model: the median.

    The models take turns, each on the same batch, so what else the machine is doing slows them
    alike and a later one has no cooler or busier processor. The batches are the first of the
    first epoch. Trains the models a little: they are of no use afterwards.
    """
    device = torch.device(settings.device)
    with own_randomness(settings.seed, device):
        optimisers = {name: new_optimiser(model, settings) for name, model in models.items()}
        first = islice(epoch_batches(data, settings, 1), _ROUNDS)
        batches = cycle([collate(pairs, device) for pairs in first])
        names = list(models)
        times: dict[str, list[float]] = {name: [] for name in names}
        began = now(device)
        for number, batch in enumerate(islice(batches, _WARM_UP + _ROUNDS)):
            shift = number % len(models)  # each is first as often as the others
            for name in [*names[shift:], *names[:shift]]:
                start = now(device)
                training_step(models[name], batch, optimisers[name])
                if number >= _WARM_UP:
                    times[name].append(now(device) - start)
            late = now(device) - began > _SECONDS * len(models)
            if late and number + 1 >= _WARM_UP + _FEWEST:
                break
    return {name: 1000 * statistics.median(taken) for name, taken in times.items()}


def peak_memory(model: Translator, data: Encoded, settings: Settings) -> float | None:
    """The most that forward and backward hold at once, in MiB; see `peak_memory_mib`.

    Measured on the batch of the first epoch with the most query-key pairs, without the optimiser.
    """
    device = torch.device(settings.device)
    batch = max(
        (collate(pairs, torch.device("cpu")) for pairs in epoch_batches(data, settings, 1)),
        key=lambda b: b.source.numel() * b.targets.shape[1],
    )
    batch = Batch(
        batch.source.to(device), batch.lengths, batch.inputs.to(device), batch.targets.to(device)
    )
    model.train()

    def step() -> None:
        batch_loss(model, batch).backward()  # type: ignore[no-untyped-call]

    with own_randomness(settings.seed, device):
        try:
            return peak_memory_mib(step, device)
        finally:
            model.zero_grad()
