"""Location-sensitive attention: anyscore's, and ESPnet's as published, in plain operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyscore.lab.bench.rivals import Call, Unavailable, Variant
from anyscore.torch import LocationSensitive


class AttLoc(nn.Module):
    """ESPnet's, written from its formulas, with the names of its parameters.

    e = g · tanh(W_enc h + b + W_dec q + W_att (F * α)) + c, α = softmax(2 e).
    """

    def __init__(self, d_q: int, d_k: int, hidden: int, filters: int, kernel: int) -> None:
        super().__init__()
        self.mlp_enc = nn.Linear(d_k, hidden)
        self.mlp_dec = nn.Linear(d_q, hidden, bias=False)
        self.mlp_att = nn.Linear(filters, hidden, bias=False)
        self.loc_conv = nn.Conv2d(1, filters, (1, kernel), padding=(0, kernel // 2), bias=False)
        self.gvec = nn.Linear(hidden, 1)

    def start(self, keys: Tensor, lengths: Tensor) -> None:
        """Project the keys; the first weights are those of a mean."""
        self.keys, self.projected = keys, self.mlp_enc(keys)
        self.padding = torch.arange(keys.shape[1]) >= lengths[:, None]
        self.last = (~self.padding).to(keys.dtype) / lengths[:, None]

    def step(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the weights of one query, and keep these."""
        batch, length = self.last.shape
        features = self.loc_conv(self.last.view(batch, 1, 1, length)).squeeze(2).transpose(1, 2)
        location = self.mlp_att(features)
        queries = self.mlp_dec(query)[:, None]
        energies = self.gvec(torch.tanh(location + self.projected + queries)).squeeze(2)
        weights = F.softmax(2.0 * energies.masked_fill(self.padding, -float("inf")), 1)
        self.last = weights
        return (self.keys * weights[..., None]).sum(1), weights


def anyscore_(work: Any) -> list[Variant]:
    """List our layer with the options that the docs name for ESPnet's."""
    return [Variant("anyscore.torch.LocationSensitive.step", partial(_ours, work))]


def _ours(work: Any) -> Call:
    width, d = work.shape.width, work.shape.value_width
    options = {"filters": work.filters, "kernel": work.kernel, "bias": True, "scale": 2.0}
    layer = LocationSensitive(d, d, width, **options).to(work.query.dtype).eval()
    layer.load_state_dict(work.parameters)
    with torch.no_grad():
        state = layer.start(work.key)._replace(weights=work.last)

    @torch.no_grad()
    def call() -> tuple[Tensor]:
        return (layer.step(work.query, state)[0],)

    return call


def eager(work: Any) -> list[Variant]:
    """List the published layer."""
    return [Variant("the published layer, eager", partial(_theirs, work))]


def compiled(work: Any) -> list[Variant]:
    """List the same under torch.compile."""
    change = partial(torch.compile, dynamic=False)
    return [Variant("torch.compile of the published step", partial(_theirs, work, change), True)]


def _theirs(work: Any, change: Callable[[Any], Any] = lambda step: step) -> Call:
    if work.training:
        raise Unavailable("one step alone is compared")
    width, d = work.shape.width, work.shape.value_width
    layer = AttLoc(d, d, width, work.filters, work.kernel).to(work.query.dtype).eval()
    layer.load_state_dict(work.parameters)
    with torch.no_grad():
        layer.start(work.key, torch.full((work.shape.batch,), work.shape.keys))
    step = change(layer.step)

    @torch.no_grad()
    def call() -> tuple[Tensor]:
        layer.last = work.last
        return (step(work.query)[0],)

    return call
