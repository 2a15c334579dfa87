"""PyTorch's calls and appends that come again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from anyscore.backends.repeated import CoreAgain
from anyscore.backends.torch.core import CORE
from anyscore.backends.torch.modes import is_compiling, wants_gradients_eagerly
from anyscore.backends.torch.repeated import TrainedCall
from anyscore.call.backend import Backend
from anyscore.call.task import Task
from anyscore.score.factors import Factors


def _written(arrays: tuple[Tensor | None, ...]) -> None:
    """Count up the versions, by which a backward finds that what it kept was written to."""
    increment_version([x for x in arrays if x is not None])


_run = CoreAgain.run  # by `super()` a call takes longer


class TorchAgain(CoreAgain):
    """Repeat calls that no compiler traces."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(
            Tensor,
            backend,
            CORE,
            wants_gradients_eagerly,
            torch.get_num_threads,
            Tensor.new_empty,
            _written,
            TrainedCall,
        )

    def run(
        self, query: Tensor, key: Any, value: Tensor, score: Any, valid_lens: Any = None
    ) -> Tensor | None:
        if type(query) is not Tensor or is_compiling() or query.is_nested:
            return None
        return _run(self, query, key, value, score, valid_lens)

    def learn(
        self, query: Tensor, key: Any, value: Tensor, score: Any, valid_lens: Any, task: Task
    ) -> None:
        if not is_compiling():
            super().learn(query, key, value, score, valid_lens, task)

    def append(self, cache: Any, key: Tensor, value: Tensor, score: Any) -> bool:
        return not is_compiling() and super().append(cache, key, value, score)

    def learn_append(self, cache: Any, key: Tensor, value: Tensor, score: Any, f: Factors) -> None:
        if not is_compiling():
            super().learn_append(cache, key, value, score, f)
