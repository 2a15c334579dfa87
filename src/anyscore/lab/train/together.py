"""Several processes of torchrun train one model: each has a shard of every batch.

The first process leads: it alone has a comparison, and tells the others which trial is next. The
others train along and keep nothing.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

import torch
from torch import Tensor, nn

from anyscore.lab.errors import InputError, RunFailure, TrialFailure
from anyscore.lab.phrases import counted
from anyscore.lab.train.batches import Batch, Pairs
from anyscore.lab.train.model import Model
from anyscore.lab.trials import Outcome, Report, Train, Trial


@dataclass(frozen=True)
class Group:
    """The processes that train one model; one process by itself is a group too.

    Attributes:
        rank: the number of this process, from 0 on.
        size: the number of processes.
    """

    rank: int = 0
    size: int = 1

    def shard(self, pairs: Pairs, rows: Tensor) -> tuple[Batch, float]:
        """Return this process's part of the batch `rows`, and the weight of its loss in the mean.

        A part's loss is a mean over its target tokens, and parts differ in their number of tokens.
        So loss of the batch = Σ over processes (weight · loss of the part), and its gradient
        likewise. A process without pairs takes one of weight 0.
        """
        if self.size == 1:
            return pairs.batch(rows), 1.0
        share = rows[self.rank :: self.size]
        tokens = int(pairs.targets.lengths[rows].sum())
        batch = pairs.batch(share if len(share) else rows[:1])
        return batch, batch.tokens / tokens if len(share) else 0.0

    def loss_of(self, model: Model) -> Callable[[Batch, float], Tensor]:
        """Return (part of a batch, weight) → loss, whose gradient is that of the whole batch."""
        if self.size == 1:
            return lambda batch, weight: model.loss(batch)
        from torch.nn.parallel import DistributedDataParallel

        together = DistributedDataParallel(_Loss(model))
        # DistributedDataParallel takes the mean of the processes' gradients; the sum is wanted.
        return lambda batch, weight: together(batch) * (weight * self.size)

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of every process's x, of the same shape."""
        if self.size > 1:
            torch.distributed.all_reduce(x)
        return x

    def next_trial(self, trial: Trial | None) -> Trial | None:
        """Return the trial that the first process passes; None from it is the end."""
        message = [trial]
        torch.distributed.broadcast_object_list(message)
        return message[0]


ALONE = Group()


class _Loss(nn.Module):
    """The loss as the call of a module, which DistributedDataParallel wraps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        return self.model.loss(batch)


@contextmanager
def joined(device: str) -> Iterator[Group]:
    """Yield the group that this process has under torchrun; without torchrun, `ALONE`.

    On GPUs each process has one of its own.

    Raises:
        InputError: there are more processes here than GPUs.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    cuda = device.startswith("cuda")
    if cuda:
        local = int(os.environ["LOCAL_RANK"])
        if device != "cuda" or local >= torch.cuda.device_count():
            raise InputError(
                "--device: under torchrun expected cuda, and a GPU for each process, got "
                f"{device!r}, {counted(torch.cuda.device_count(), 'GPU')} for process {local + 1}"
            )
        torch.cuda.set_device(local)
    torch.distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        # torchrun ends all processes when one is lost, so a wait for another's test needs no limit.
        timeout=timedelta(days=7),
    )
    try:
        yield Group(torch.distributed.get_rank(), size)
    except RunFailure:  # a process is lost: the group's destructors may wait for it, for days
        atexit.register(_end_at_once)
        raise
    except BaseException:
        torch.distributed.destroy_process_group()
        raise
    torch.distributed.destroy_process_group()


def _end_at_once() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


@contextmanager
def leading(train: Train, group: Group) -> Iterator[Train]:
    """Give a training function for the whole group, in its first process; then end the others."""
    if group.size == 1:
        yield train
        return
    leader = _Leader(train, group)
    try:
        yield leader
    finally:
        leader.dismiss()


class _Leader:
    """A training function for the first process: it tells the others of each trial."""

    def __init__(self, train: Train, group: Group) -> None:
        self._train, self._group = train, group
        self._waited_for = False  # by the others, in the middle of a training

    def __call__(self, trial: Trial, report: Report) -> Outcome:
        self._waited_for = True
        self._group.next_trial(trial)
        try:
            outcome = self._train(trial, report)
        except TrialFailure:  # of all processes together
            self._waited_for = False
            raise
        except Exception as error:
            raise RunFailure(_lost(self._group, error)) from error
        self._waited_for = False
        return outcome

    def dismiss(self) -> None:
        """Let the others go. In the middle of a training they go when this process ends."""
        if not self._waited_for:
            with suppress(RuntimeError):  # they are gone already
                self._group.next_trial(None)


def follow(train: Train, group: Group) -> None:
    """Train along with the first process until it has no more trials, in the other processes.

    Ctrl-C is for the first process; the others go when it is gone.
    """
    stopped = []

    def remember(number: int, frame: FrameType | None) -> None:
        stopped.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, remember)
    try:
        while (trial := group.next_trial(None)) is not None:
            with suppress(TrialFailure):
                train(trial, lambda details: None)
    except Exception as error:
        if not stopped:
            print(f"anyscore: {_lost(group, error)}", file=sys.stderr, flush=True)
        os._exit(1)  # any other way out would wait for the first process, for days


def _lost(group: Group, error: Exception) -> str:
    """Print that a process cannot go on, and the reason."""
    message = (" ".join(str(error).split()) or type(error).__name__)[:300]
    return f"process {group.rank + 1} of {group.size} cannot go on ({message}), so all of them end"
