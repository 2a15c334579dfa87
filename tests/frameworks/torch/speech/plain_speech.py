"""Location-sensitive attention as NVIDIA's Tacotron 2 defines it, and alignments by their formulas.

The code follows formulas, with the names of their parameters. The benchmark has ESPnet's layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyscore.torch import LocationSensitive

BATCH, QUERIES, KEYS, D_Q, D_K, HIDDEN, FILTERS = 3, 4, 37, 5, 6, 7, 2
SIZES = {"d_q": D_Q, "d_k": D_K, "hidden": HIDDEN}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)


def layer(seed: int = 0, **options: Any) -> LocationSensitive:
    torch.manual_seed(seed)
    found = LocationSensitive(
        D_Q, D_K, HIDDEN, **{"filters": FILTERS, "kernel": 5, **options}
    ).double()
    for x in found.parameters():
        nn.init.normal_(x)
    return found


class Named(nn.Module):
    """Layer within a module, as in NVIDIA's code."""

    def __init__(self, name: str, layer: nn.Module) -> None:
        super().__init__()
        self.add_module(name, layer)
        self.layer = name

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.get_submodule(self.layer)(x)
        return found


def linear(d: int, h: int) -> Named:
    return Named("linear_layer", nn.Linear(d, h, bias=False))


class TacotronLocation(nn.Module):
    """e = v · tanh(W q + V h + U (F * [α, Σ α])), α = softmax(e); both channels start at 0."""

    def __init__(self, d_q: int, d_k: int, hidden: int, filters: int, kernel: int) -> None:
        super().__init__()
        self.query_layer, self.memory_layer = linear(d_q, hidden), linear(d_k, hidden)
        self.v = linear(hidden, 1)
        convolution = nn.Conv1d(2, filters, kernel, padding=kernel // 2, bias=False)
        self.location_layer = nn.ModuleDict(
            {"location_conv": Named("conv", convolution), "location_dense": linear(filters, hidden)}
        )

    def start(self, keys: Tensor, lengths: Tensor) -> None:
        self.keys, self.projected = keys, self.memory_layer(keys)
        self.padding = torch.arange(keys.shape[1]) >= lengths[:, None]
        self.last = self.total = keys.new_zeros(keys.shape[:2])

    def step(self, query: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([self.last[:, None], self.total[:, None]], 1)
        features = self.location_layer["location_conv"](both).transpose(1, 2)
        location = self.location_layer["location_dense"](features)
        hidden = torch.tanh(self.query_layer(query[:, None]) + location + self.projected)
        energies = self.v(hidden).squeeze(-1).masked_fill(self.padding, -float("inf"))
        weights = F.softmax(energies, 1)
        self.last, self.total = weights, self.total + weights
        return torch.bmm(weights[:, None], self.keys)[:, 0], weights


def expected_alignment(p: list[list[Any]]) -> list[list[Any]]:
    """Return α_ij = p_ij Σ_k≤j α_i−1,k Π_k≤l<j (1 − p_il), literally.

    Source: Raffel et al. 2017, eq. 8 and 9.
    """
    before: list[Any] = [1] + [0] * (len(p[0]) - 1)
    rows = []
    for row in p:
        found = []
        for j, stop in enumerate(row):
            total: Any = 0
            for k in range(j + 1):
                product = before[k]
                for passed in row[k:j]:
                    product = product * (1 - passed)
                total = total + product
            found.append(stop * total)
        rows.append(found)
        before = found
    return rows


def expected_chunks(alpha: Tensor, u: Tensor, width: int) -> Tensor:
    """Return chunkwise weights, literally by Chiu & Raffel 2018, eq. 11 to 13."""
    rows = []
    for a, e in zip(alpha.reshape(-1, alpha.shape[-1]), u.reshape(-1, u.shape[-1]), strict=True):
        keys, row = len(a), []
        for j in range(keys):
            total = 0 * a[0]
            for k in range(j, min(j + width, keys)):
                chunk = e[max(k - width + 1, 0) : k + 1]
                if e[j] > -torch.inf:
                    total = total + a[k] * e[j].exp() / chunk.exp().sum()
            row.append(total)
        rows.append(torch.stack(row))
    return torch.stack(rows).view(u.shape)
