"""What a training step costs with each score, measured side by side."""

from __future__ import annotations

from itertools import cycle, islice

import torch

from anyscore.lab.data.encoding import Encoded
from anyscore.lab.train.batches import Pairs
from anyscore.lab.train.measure import now, peak_memory_mib
from anyscore.lab.train.model import Model
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.training import (
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
    models: dict[str, Model], data: Encoded, settings: Settings
) -> dict[str, list[float]]:
    """Milliseconds of training steps (forward, backward, update) of each model, round by round.

    The models take turns, each on the same batch, so what else the machine is doing slows them
    alike and a later one has no cooler or busier processor. The batches are the first of the
    first epoch. Trains the models a little: they are of no use afterwards.
    """
    device = torch.device(settings.device)
    with own_randomness(0, device):
        rate = settings.learning_rate
        optimisers = {name: new_optimiser(model, rate) for name, model in models.items()}
        pairs = Pairs(data.train, device)
        first = islice(epoch_batches(pairs, settings.batch_size, 0, 1), _ROUNDS)
        batches = cycle([pairs.batch(rows) for rows in first])
        names = list(models)
        times: dict[str, list[float]] = {name: [] for name in names}
        began = now(device)
        for number, batch in enumerate(islice(batches, _WARM_UP + _ROUNDS)):
            shift = number % len(models)  # each is first as often as the others
            for name in [*names[shift:], *names[:shift]]:
                start = now(device)
                training_step(models[name], batch, optimisers[name])
                if number >= _WARM_UP:
                    times[name].append(1000 * (now(device) - start))
            late = now(device) - began > _SECONDS * len(models)
            if late and number + 1 >= _WARM_UP + _FEWEST:
                break
    return times


def peak_memory(model: Model, data: Encoded, settings: Settings) -> float | None:
    """The most that forward and backward hold at once, in MiB; see `peak_memory_mib`.

    Measured on the batch of an epoch with the most query-key pairs, without the optimiser. The
    epoch is the same for all trials.
    """
    device = torch.device(settings.device)
    pairs = Pairs(data.train, device)
    sources, targets = pairs.sources.lengths, pairs.targets.lengths
    rows = max(
        epoch_batches(pairs, settings.batch_size, 0, 1),
        key=lambda rows: len(rows) * int(sources[rows].max()) * int(targets[rows].max()),
    )
    batch = pairs.batch(rows)
    model.train()

    def step() -> None:
        model.loss(batch).backward()  # type: ignore[no-untyped-call]

    with own_randomness(0, device):
        try:
            return peak_memory_mib(step, device)
        finally:
            model.zero_grad()
