"""Small proofs are trained on data made for each step."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from anyscore.lab.errors import TrialFailure
from anyscore.lab.trials import Report
from anyscore.layers.parameters import has_hidden
from anyscore.score import SCORES
from anyscore.torch import Attention

_SECONDS = 0.5  # between two reports
_LOOKED_AT = 20  # steps between two looks at the loss


def learn(
    model: nn.Module,
    loss: Callable[[], Tensor],
    *,
    steps: int,
    rate: float,
    report: Report,
    falling: bool = True,
    enough: float = 0.0,
) -> int:
    """Train with Adam, on one thread.

    Args:
        model: is trained in place.
        loss: makes a batch and returns its loss.
        steps: the most steps.
        rate: the learning rate; it falls linearly to 0 if `falling`.
        report: takes progress.
        enough: a loss below which training ends early.

    Returns:
        The number of steps taken.

    Raises:
        TrialFailure: the loss is no number any more.
    """
    torch.set_num_threads(1)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    due = time.monotonic()
    for step in range(1, steps + 1):
        if falling:
            for group in optimiser.param_groups:
                group["lr"] = rate * (1 - (step - 1) / steps)
        batch_loss = loss()
        optimiser.zero_grad()
        batch_loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if step % _LOOKED_AT == 0 or step == steps:
            value = batch_loss.item()
            if value != value:
                raise TrialFailure(f"the loss became {value} in step {step}")
            if value < enough:
                return step
        if time.monotonic() >= due:
            report({"step": step, "steps": steps})
            due = time.monotonic() + _SECONDS
    return steps


def attention(score: str, width: int, hidden: int) -> Attention:
    """Make a layer of one head over queries and keys of a width.

    Args:
        hidden: width of the score itself, if it has one.
    """
    score_hidden = hidden if has_hidden(SCORES[score]) else None
    return Attention(score, hidden=score_hidden, d_q=width, d_k=width)
