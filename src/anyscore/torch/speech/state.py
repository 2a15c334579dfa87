"""The state of a decoder between steps: its keys and values, and the weights of earlier steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from anyscore.call.prepared import PreparedKeys
from anyscore.functional.cache.checks import backend_of, check_beams
from anyscore.ops.pytrees import named_tuple, tree


@tree
@dataclass(frozen=True)
class Kind:
    """The name of a layer as part of a pytree's structure: exported programs cannot return text."""

    static: ClassVar[tuple[str, ...]] = ("name",)
    name: str


class _Fields(NamedTuple):
    keys: Any
    values: Tensor
    allowed: Tensor | None
    alignment: Tensor
    total: Tensor
    passed_on: Tensor
    steps: int = 0
    in_logarithms: bool = False
    transition: Tensor | None = None
    kind: Kind | None = None


@named_tuple
class State(_Fields):
    """The state of a decoder between steps. `start` creates it, each `step` returns the next.

    `_replace(weights=…)` sets the weights from which the next step starts, and `_replace(values=…)`
    the values of later steps. Tensors of a state are never written to.

    keys: prepared for the layer.
    values: (B, T_k, d_v).
    allowed: (B, T_k), True = may be attended in all later steps; None: all.
    alignment: (B, T_k), the weights; their logarithms, which do not underflow, if `in_logarithms`.
    total: (B, T_k), the sum of weights over steps.
    passed_on: the values, passed from step to step so that their gradients add up in place.
    steps: the number of steps so far.
    in_logarithms: whether `alignment` holds logarithms, as after a step of forward attention.
    transition: (B,), u of forward attention with an agent.
    kind: the class of the layer.
    """

    __slots__ = ()

    @property
    def weights(self) -> Tensor:
        """The weights of the last step (B, T_k), alignments in MoChA; the next step starts here."""
        return self.alignment.exp() if self.in_logarithms else self.alignment

    def _replace(self, **fields: Any) -> State:
        if "weights" in fields:
            fields |= {"alignment": fields.pop("weights"), "in_logarithms": False}
        if "values" in fields:
            fields.setdefault("passed_on", fields["values"])
        return super()._replace(**fields)

    __replace__ = _replace  # of copy.replace

    def moved(self, weights: Tensor, keys: Any, logarithms: Tensor | None = None) -> State:
        """Return the state after a step with these weights. keys: for the next step."""
        return State(  # faster than _replace
            keys,
            self.values,
            self.allowed,
            weights if logarithms is None else logarithms,
            self.total + weights,
            self.passed_on,
            self.steps + 1,
            logarithms is not None,
            self.transition,
            self.kind,
        )

    def after(self, earlier: State) -> State:
        """Return this state with the weights of an earlier one, detached from its graph.

        For truncated backpropagation: `layer.start(keys, values).after(state)`.
        """
        transition = earlier.transition
        return self._replace(
            alignment=earlier.alignment.detach(),
            in_logarithms=earlier.in_logarithms,
            total=earlier.total.detach(),
            steps=earlier.steps,
            transition=None if transition is None else transition.detach(),
        )

    def reorder(self, beams: Any) -> State:
        """Replace entry i of the batch by entry beams[i], as a beam search does.

        This state stays as it is. Gradients reach the entries that are kept. Compiled programs and
        accelerators do not check beams.

        Args:
            beams: (B,), integers ≥ 0 of the first axis of keys and values.

        Returns:
            The state with these entries.

        Raises:
            TypeError, ValueError: beams are not (B,) integers from 0 to B − 1.
        """
        backend, buffers = backend_of(self.values)
        index = check_beams(backend.xp, buffers, beams, self.values, self.values)
        names = "keys", "values", "allowed", "alignment", "total", "transition"
        return self._replace(**{name: take_entries(getattr(self, name), index) for name in names})


@named_tuple
class Step(NamedTuple):
    """The result of a step: output (B, d_v), weights (B, T_k), and the state for the next."""

    output: Tensor
    weights: Tensor
    state: State


def take_entries(x: Any, index: Tensor) -> Any:
    """Return entries index of a tensor (B, …), or of the prepared keys of any layer."""
    if x is None:
        return None
    if isinstance(x, Tensor):
        return x.index_select(0, index)
    if isinstance(x, PreparedKeys):
        found: dict[str, Any] = {
            name: _take(getattr(x, name), index, axis) for name, axis in _BATCH_AXES.items()
        }
        return replace(x, **found)
    return x.reorder(index)


_BATCH_AXES = {"key": -3, "b": -3, "packed": -3, "key_bias": -2}


def _take(x: Tensor | None, index: Tensor, axis: int) -> Tensor | None:
    """Return entries index along the batch's axis; x itself if entries share it."""
    if x is None or x.dim() < -axis or x.shape[axis] == 1:
        return x
    return x.index_select(axis, index)
