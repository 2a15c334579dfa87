"""Location-sensitive attention: anyscore's, and ESPnet's as published, in plain operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyscore.lab.bench.rivals import Call, Unavailable, Variant
from anyscore.lab.bench.work import drawn
from anyscore.torch import LocationSensitive
from benchmarks.work import Work


@dataclass(frozen=True)
class LocationWork(Work):
    """A decoder's step of ESPnet's `AttLoc` (Chorowski et al. 2015), keys projected before.

        α = softmax_j(2 (g · tanh(W_q q + W_k k_j + b + U (F ∗ α′)_j) + c))    output Σ_j α_j k_j

    α′ are the weights of the step before. shape: batch, 1, T_k, width of the energies, width of the
    keys, which is that of the query too. Parameters are `parameters`, by ESPnet's names.
    """

    task: str = "location"
    filters: int = 10
    kernel: int = 201

    @cached_property
    def query(self) -> Tensor:
        return self._placed(drawn(1, self.shape.batch, self.shape.value_width))

    @cached_property
    def key(self) -> Tensor:
        return self._placed(self._normal(2, self.shape.keys, self.shape.value_width))

    @cached_property
    def last(self) -> Tensor:
        """The weights α′ (B, T_k)."""
        return self._placed(drawn(3, self.shape.batch, self.shape.keys).softmax(-1))

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        width, d, filters = self.shape.width, self.shape.value_width, self.filters
        drawn_so = {
            "mlp_enc.weight": drawn(11, width, d) / d**0.5,
            "mlp_enc.bias": drawn(12, width) / 2,
            "mlp_dec.weight": drawn(13, width, d) / d**0.5,
            "mlp_att.weight": drawn(14, width, filters) / filters**0.5,
            "loc_conv.weight": 4 * drawn(15, filters, 1, 1, self.kernel),
            "gvec.weight": drawn(16, 1, width) / width**0.5,
            "gvec.bias": drawn(17, 1),
        }
        return {name: self._placed(x) for name, x in drawn_so.items()}

    def truth(self, score: str) -> dict[str, Tensor]:
        """Compute by the formula in float64."""
        query, key, last = (x.double() for x in (self.query, self.key, self.last))
        p = {name: x.double() for name, x in self.parameters.items()}
        half = self.kernel // 2
        around = torch.nn.functional.pad(last, (half, half)).unfold(-1, self.kernel, 1)
        located = around @ p["loc_conv.weight"].flatten(1).mT @ p["mlp_att.weight"].mT
        hidden = key @ p["mlp_enc.weight"].mT + p["mlp_enc.bias"] + located
        hidden = (hidden + (query @ p["mlp_dec.weight"].mT)[:, None]).tanh()
        weights = (2 * (hidden @ p["gvec.weight"][0] + p["gvec.bias"])).softmax(-1)
        return {"output": (weights[:, None] @ key)[:, 0]}

    def checked(self, name: str, x: Tensor, right: Tensor) -> Tensor:
        return x

    def _whole_upstream(self) -> Tensor:
        return torch.zeros(self.shape.batch, 1, self.shape.value_width)


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


def anyscore_(work: LocationWork) -> list[Variant]:
    """List our layer with the options that the docs name for ESPnet's."""
    return [Variant("anyscore.torch.LocationSensitive.step", partial(_ours, work))]


def _ours(work: LocationWork) -> Call:
    width, d = work.shape.width, work.shape.value_width
    options: dict[str, Any] = {
        "filters": work.filters,
        "kernel": work.kernel,
        "bias": True,
        "scale": 2.0,
    }
    layer = LocationSensitive(d, d, width, **options).to(work.query.dtype).eval()
    layer.load_state_dict(work.parameters)
    with torch.no_grad():
        state = layer.start(work.key)._replace(weights=work.last)

    @torch.no_grad()
    def call() -> tuple[Tensor]:
        return (layer.step(work.query, state)[0],)

    return call


def eager(work: LocationWork) -> list[Variant]:
    """List the published layer."""
    return [Variant("the published layer, eager", partial(_theirs, work))]


def compiled(work: LocationWork) -> list[Variant]:
    """List the same under torch.compile."""
    change = partial(torch.compile, dynamic=False)
    return [Variant("torch.compile of the published step", partial(_theirs, work, change), True)]


def _theirs(work: LocationWork, change: Callable[[Any], Any] = lambda step: step) -> Call:
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
