"""The weights of the attention layers of a model, collected while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from anyscore.layers.last_weights import as_index
from anyscore.layers.select import choose_layers
from anyscore.ops.checks import brief

Weights = NDArray[np.float32]


@dataclass
class Recording:
    """Weights of the calls of attention layers, in the order of the calls; `record` yields one.

    `recording["encoder.0"]` lists the weights of the calls of a layer.

    Attributes:
        layers: the names of the recorded layers; some may not have run.
        calls: (name of the layer, weights) of each call. Weights are (examples, heads, T_q, T_k),
            float32, before dropout. A layer without heads has one head; a call without a batch has
            one example.
        chosen: the arguments "heads" and "examples" of `record`, as lists of integers or slices;
            empty if all are recorded.

    Raises:
        KeyError: `recording[layer]` names a layer that was not recorded.

    >>> import torch
    >>> from anyscore import record
    >>> from anyscore.torch import Attention
    >>> model, x = torch.nn.Sequential(Attention()), torch.zeros(2, 3, 4)
    >>> with record(model) as recording:
    ...     output = model[0](x, x)
    >>> recording["0"][0][0, 0]                             # example 0, head 0
    array([[0.33333334, 0.33333334, 0.33333334],
           [0.33333334, 0.33333334, 0.33333334],
           [0.33333334, 0.33333334, 0.33333334]], dtype=float32)
    """

    layers: list[str]
    calls: list[tuple[str, Weights]] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, layer: str) -> list[Weights]:
        if layer not in self.layers:
            raise KeyError(f"{layer!r} was not recorded, only {', '.join(self.layers)}.")
        return [weights for name, weights in self.calls if name == layer]

    def examples(self) -> dict[str, list[Weights]]:
        """Return the weights of each example, for each layer that ran.

        A call with one query is a step of a decoder: its weights become the next row of the call
        before. Keys that a row did not have yet get weight 0. A call with more queries begins new
        examples.

        Returns:
            A dictionary from names of layers to lists of weights (heads, T_q, T_k).
        """
        found = {layer: self.runs(layer) for layer in self.layers}
        return {
            layer: [example for run in runs for example in _rows(run)]
            for layer, runs in found.items()
            if runs
        }

    def runs(self, layer: str) -> list[list[Weights]]:
        """Return the calls of a layer, grouped into the steps of the same examples.

        Args:
            layer: the name of a recorded layer.

        Returns:
            A list of runs. Each is a list of weights (examples, heads, T_q, T_k).

        Raises:
            KeyError: The layer was not recorded.
        """
        runs: list[list[Weights]] = []
        for weights in self[layer]:
            if runs and _follows(weights, runs[-1][-1]):
                runs[-1].append(weights)
            else:
                runs.append([weights])
        return runs


@contextmanager
def record(
    model: Any, layers: Any = None, heads: Any = None, examples: Any = None
) -> Iterator[Recording]:
    """Record the attention weights of a model while the block runs.

    Layers of anyscore are recorded, and any layer with a method `last_weights(rows, heads,
    examples)` that returns the weights (…, T_q, T_k) of its last call. Calls of `layer.step` with
    a cache are recorded too. The results of the model stay the same, and all hooks are removed
    afterwards.

    Not recorded are calls inside `torch.compile`, in hybridized blocks of MXNet, and in `fit` and
    `predict` of Keras on TensorFlow and JAX. `Cache.attend` belongs to no layer.

    Args:
        model: a layer or a model of PyTorch, Keras or Gluon.
        layers: names of layers, the beginning of names up to a dot, or numbers in the order of the
            model. By default None, all.
        heads, examples: the heads, and the examples of a batch, to record: an integer, a slice or
            a sequence of integers each. By default None, all. Other weights are not computed.

    Yields:
        The `Recording`, which grows with each call.

    Raises:
        TypeError: The model belongs to no such framework, or a choice has another type.
        ValueError: The model has no layer that can be recorded, or no layer of the name; a choice
            is empty. In the call of a layer: slices choose no weights, or the layer attends along
            the edges of a graph, so that its weights are not (T_q, T_k).
        IndexError: The model has no layer of the number. In the call of a layer: no such head or
            example.

    >>> import torch
    >>> from anyscore import record
    >>> from anyscore.torch import SelfAttention
    >>> model = torch.nn.Sequential(SelfAttention(8, 4), SelfAttention(8, 4))
    >>> with record(model, layers="1") as recording:
    ...     output = model(torch.ones(2, 5, 8))
    >>> [(name, weights.shape) for name, weights in recording.calls]
    [('1', (2, 1, 5, 5))]
    """
    found = _recordable(model)
    found = {name: found[name] for name in choose_layers(found, layers)}
    both = {"heads": heads, "examples": examples}
    choice = {name: _some(name, x) for name, x in both.items() if x is not None}
    recording = Recording(list(found), [], choice)

    def note(name: str, weights: Any) -> None:
        if weights is not None:  # None: the layer ran under a compiler
            recording.calls.append((name, _four_axes(name, to_numpy(weights, np.float32), choice)))

    def note_call(name: str, layer: Any) -> None:
        # rows=all makes weights over edges raise an error
        note(name, layer.last_weights(rows=slice(None), **choice))

    def note_step(name: str, layer: Any, *args: Any, **options: Any) -> None:
        note(name, layer.step_weights(*args, **choice, **options))

    with ExitStack() as hooks:
        for name, layer in found.items():
            hooks.callback(_after_calls(layer, partial(note_call, name, layer)))
            if hasattr(layer, "step_weights"):
                hooks.callback(_after(layer, "step", partial(note_step, name, layer)))
        yield recording


def to_numpy(x: Any, dtype: DTypeLike) -> NDArray[Any]:
    """Copy a tensor of any framework, on any device, to a NumPy array.

    Raises:
        TypeError, ValueError: x does not hold real numbers.
    """
    if isinstance(x, (list, tuple)):
        return np.stack([to_numpy(part, dtype) for part in x])
    if hasattr(x, "asnumpy"):  # MXNet
        x = x.asnumpy()
    elif hasattr(x, "detach"):  # PyTorch: off the graph, off the device, no bfloat16
        x = x.detach().cpu().double()
    values = np.asarray(x)
    if values.dtype.kind in "cSUmM":
        raise TypeError(f"its elements are {values.dtype}")
    return values.astype(dtype)


def _recordable(model: Any) -> dict[str, Any]:
    """Map names to the layers with `last_weights`, in the model's order.

    Of nested layers the outermost is taken: it may compute the inner layers without calling them.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()

    def visit(module: Any, path: str) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        if callable(getattr(module, "last_weights", None)):
            found[path or type(module).__name__] = module
            return
        for name, child in children(module):
            visit(child, f"{path}.{name}" if path else name)

    if isinstance(model, type):
        raise TypeError(f"model is the class {model.__name__}: make one, {model.__name__}(...).")
    children = _children_of(model)
    visit(model, "")
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no attention layer whose weights can be recorded: "
            "expected a model with layers such as Attention or MultiHeadAttention of "
            "anyscore.torch, anyscore.keras or anyscore.mxnet."
        )
    return found


def _children_of(model: Any) -> Callable[[Any], list[tuple[str, Any]]]:
    """Return a function layer → [(name, child), …], for the model's framework."""
    if hasattr(model, "_flatten_layers"):  # Keras, whose layers may be modules of PyTorch too
        return lambda layer: [
            (x.name, x) for x in layer._flatten_layers(include_self=False, recursive=False)
        ]
    if hasattr(model, "named_children"):  # PyTorch
        return lambda module: list(module.named_children())
    if hasattr(model, "collect_params"):  # Gluon
        return lambda block: [(str(key), x) for key, x in block._children.items()]
    raise TypeError(
        f"model is a {type(model).__name__}, expected a module of PyTorch, a layer or model of "
        "Keras, or a block of Gluon. Of other models collect weights by return_weights=True."
    )


def _after_calls(layer: Any, noted: Callable[[], None]) -> Callable[[], None]:
    """Call `noted` after each call of a layer. Return a function that ends this."""
    if not hasattr(layer, "_flatten_layers"):

        def hook(*_: Any) -> None:
            noted()

        handle = layer.register_forward_hook(hook)
        end: Callable[[], None] = handle.remove if hasattr(handle, "remove") else handle.detach
        return end
    return _after(layer, "call", lambda *_, **__: noted())  # Keras has no hooks


def _after(layer: Any, method: str, noted: Callable[..., None]) -> Callable[[], None]:
    """Call `noted` with the arguments of each call of a method. Return a function that ends it."""
    before, own = getattr(layer, method), vars(layer).get(method)

    def call(*args: Any, **named: Any) -> Any:
        output = before(*args, **named)
        noted(*args, **named)
        return output

    setattr(layer, method, call)

    def put_back() -> None:
        if own is None:
            delattr(layer, method)
        else:
            setattr(layer, method, own)

    return put_back


def _some(name: str, chosen: Any) -> Any:
    """Return the chosen entries as `as_index` does.

    Raises:
        TypeError, ValueError: no integers, or an empty choice.
    """
    found = as_index(name, chosen)
    if found == []:
        raise ValueError(f"{name} is empty: leave it out for all {name}.")
    return found


def _four_axes(name: str, weights: Weights, choice: Mapping[str, Any]) -> Weights:
    """Reshape weights to (examples, heads, T_q, T_k).

    Raises:
        ValueError: fewer than two axes, or an empty choice.
    """
    shape = weights.shape
    if len(shape) < 2:
        raise ValueError(f"{name} gave weights of shape {shape}, expected (…, T_q, T_k).")
    if choice and 0 in shape[:-2]:
        slices = ", ".join(f"{axis}={brief(x)}" for axis, x in choice.items())
        raise ValueError(f"{slices} chooses nothing in {name}, whose weights are then {shape}.")
    if len(shape) < 4:
        return weights.reshape(*(shape[:-2] or (1,)), 1, *shape[-2:])
    return weights.reshape(math.prod(shape[:-3]), *shape[-3:])


def _follows(weights: Weights, before: Weights) -> bool:
    """Check if a call can be the next step after another."""
    same = weights.shape[:2] == before.shape[:2] and weights.shape[2] == 1
    return same and weights.shape[3] >= before.shape[3]


def _rows(run: list[Weights]) -> Weights:
    """Stack the calls of a run along the axis of queries, padded with 0 to the same keys."""
    keys = run[-1].shape[3]
    wide = [np.pad(w, [(0, 0)] * 3 + [(0, keys - w.shape[3])]) for w in run]
    return np.concatenate(wide, axis=2)
