"""A step of location-sensitive attention as work: its inputs, and the right answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from anyscore.lab.bench.work import Work, drawn


@dataclass(frozen=True)
class LocationWork(Work):
    """A decoder's step of ESPnet's `AttLoc` (Chorowski et al. 2015), keys projected before.

        α = softmax_j(2 (g · tanh(W_q q + W_k k_j + b + U (F ∗ α′)_j) + c))    output Σ_j α_j k_j

    α′ are the weights of the step before. shape: batch, 1, T_k, width of the energies, width of the
    keys, which is that of the query too. Parameters are `parameters`, by ESPnet's names.
    """

    ours: ClassVar[str | None] = "variants_speech.anyscore_"

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

    def own_truth(self, score: str) -> dict[str, Tensor]:
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
