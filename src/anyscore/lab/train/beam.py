"""Beam search: several outputs of each source are followed side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from anyscore.lab.data.tokens import BOS, EOS, PAD
from anyscore.lab.train.model import Said
from anyscore.lab.train.stepwise import Stepwise


@torch.no_grad()
def beam_search(
    model: Stepwise,
    source: Tensor,
    lengths: Tensor,
    *,
    width: int,
    limit: int,
    return_weights: bool = False,
) -> list[Said]:
    """The best output that is found to each source (B, T_k), of the `lengths` (B,).

        worth of an output = its log-probability / its number of tokens, the end among them

    At each step every output that has not ended is continued by every token, and the `width` of
    most worth stay, ended ones among them. It is over when all that stay have ended, or at `limit`
    tokens. With `width` 1 this is `greedy`; one that nothing is dropped at finds the best of all.

    Wu et al., "Google's neural machine translation system", 2016, divide by a power of the length.
    """
    device, count = source.device, len(source)
    memory = model.begin(
        source.repeat_interleave(width, 0), lengths.repeat_interleave(width)
    )  # (B · width, ...), the outputs of a source one after the other
    first = torch.arange(count, device=device)[:, None] * width
    token = torch.full((count * width, 1), BOS, device=device)
    # All start alike: only one of them may be continued.
    total = torch.full((count, width), -torch.inf, device=device)
    total[:, 0] = 0.0
    size = torch.zeros(count, width, device=device)
    ended = torch.zeros(count, width, dtype=torch.bool, device=device)
    tokens: list[Tensor] = []  # of each step (B, width)
    parents: list[Tensor] = []  # the output that each was before the step (B, width)
    looked: list[Tensor] = []
    for _ in range(limit):
        found, memory = model.step(token, memory)
        if return_weights:
            looked.append(model.weights().cpu().view(count, width, -1))
        found = found.view(count, width, -1)
        found[ended] = -torch.inf
        found[..., PAD].masked_fill_(ended, 0.0)  # what has ended stays as it is
        totals, sizes = total[..., None] + found, size + ~ended
        worth = (totals / sizes[..., None]).flatten(1)
        chosen = worth.topk(width).indices
        parent, next_token = chosen // found.shape[-1], chosen % found.shape[-1]
        total, size = totals.flatten(1).gather(1, chosen), sizes.gather(1, parent)
        ended = ended.gather(1, parent) | (next_token == EOS)
        tokens.append(next_token)
        parents.append(parent)
        if (ended | (total == -torch.inf)).all():
            break
        memory = model.reorder(memory, (first + parent).flatten())
        token = next_token.reshape(-1, 1)
    best = (total / size).argmax(1, keepdim=True)
    nats = total.gather(1, best).squeeze(1).tolist()
    numbers, weights = _traced(best, tokens, parents, looked)
    said = []
    for i, length in enumerate(lengths.tolist()):
        row = [number for number in numbers[i].tolist() if number != PAD]
        maps = weights[i, : len(row), :length] if return_weights else None
        said.append(Said(row, nats[i], maps))
    return said


def _traced(
    place: Tensor, tokens: list[Tensor], parents: list[Tensor], looked: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """The tokens (B, T) of the outputs that end at the places (B, 1), and their weights (B, T, ·).

    Where an output looked for a token is known at the place that it had before the token.
    """
    numbers, weights = [], []
    for step in range(len(tokens) - 1, -1, -1):
        numbers.append(tokens[step].gather(1, place))
        place = parents[step].gather(1, place)
        if looked:
            rows = torch.arange(len(place))
            weights.append(looked[step][rows, place.squeeze(1).cpu()])
    return torch.cat(numbers[::-1], 1), torch.stack(weights[::-1], 1) if looked else place
