"""Beam search: several outputs of each source are followed side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from anyscore.lab.data.tokens import BOS, EOS, PAD
from anyscore.lab.train.model import Decoded
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
) -> list[Decoded]:
    """Search the best output to each source (B, T_k) of the `lengths` (B,).

        value of an output = its log-probability / its number of tokens, the end among them

    At each step every output that has not ended is continued by every token, and the `width` of
    largest value stay, ended ones among them. The search ends when all that stay have ended, or at
    `limit` tokens. With `width` 1 the result is that of `greedy`; a width at which nothing is
    dropped finds the best output of all.

    Wu et al., "Google's neural machine translation system", 2016, divide by a power of the length.
    """
    device, count = source.device, len(source)
    memory = model.begin(
        source.repeat_interleave(width, 0), lengths.repeat_interleave(width)
    )  # (B · width, ...), the outputs of a source one after the other
    first_row = torch.arange(count, device=device)[:, None] * width
    token = torch.full((count * width, 1), BOS, device=device)
    # All outputs are equal at the start: only one of them may be continued.
    total = torch.full((count, width), -torch.inf, device=device)
    total[:, 0] = 0.0
    output_lengths = torch.zeros(count, width, device=device)
    ended = torch.zeros(count, width, dtype=torch.bool, device=device)
    tokens: list[Tensor] = []  # of each step (B, width)
    parents: list[Tensor] = []  # the output that each was before the step (B, width)
    weights_by_step: list[Tensor] = []
    for _ in range(limit):
        logp, memory = model.step(token, memory)
        if return_weights:
            weights_by_step.append(model.weights().cpu().view(count, width, -1))
        logp = logp.view(count, width, -1)
        logp[ended] = -torch.inf
        logp[..., PAD].masked_fill_(ended, 0.0)  # ended outputs stay unchanged
        totals, longer = total[..., None] + logp, output_lengths + ~ended
        mean_logp = (totals / longer[..., None]).flatten(1)
        chosen = mean_logp.topk(width).indices
        parent, next_token = chosen // logp.shape[-1], chosen % logp.shape[-1]
        total, output_lengths = totals.flatten(1).gather(1, chosen), longer.gather(1, parent)
        ended = ended.gather(1, parent) | (next_token == EOS)
        tokens.append(next_token)
        parents.append(parent)
        if (ended | (total == -torch.inf)).all():
            break
        memory = model.reorder(memory, (first_row + parent).flatten())
        token = next_token.reshape(-1, 1)
    best = (total / output_lengths).argmax(1, keepdim=True)
    nats = total.gather(1, best).squeeze(1).tolist()
    numbers, weights = _traced(best, tokens, parents, weights_by_step)
    outputs = []
    for i, length in enumerate(lengths.tolist()):
        row = [number for number in numbers[i].tolist() if number != PAD]
        maps = weights[i, : len(row), :length] if return_weights else None
        outputs.append(Decoded(row, nats[i], maps))
    return outputs


def _traced(
    place: Tensor, tokens: list[Tensor], parents: list[Tensor], weights_by_step: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Trace back the tokens (B, T) of outputs that end at places (B, 1), and weights (B, T, ·).

    The weights for a token are known at the place that the output had before the token.
    """
    numbers, weights = [], []
    for step in range(len(tokens) - 1, -1, -1):
        numbers.append(tokens[step].gather(1, place))
        place = parents[step].gather(1, place)
        if weights_by_step:
            rows = torch.arange(len(place))
            weights.append(weights_by_step[step][rows, place.squeeze(1).cpu()])
    return torch.cat(numbers[::-1], 1), torch.stack(weights[::-1], 1) if weights_by_step else place
