"""Location-sensitive attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyscore.backends.torch.modes import without_autocast
from anyscore.ops.checks import brief, check_numbers, check_size, check_switches
from anyscore.ops.pytrees import named_tuple
from anyscore.torch.speech.location_energies import COLUMNS, location_energies, toeplitz
from anyscore.torch.speech.state import State
from anyscore.torch.speech.stepwise import StepwiseAttention, softmax
from anyscore.torch.speech.weighted_sum import Spans

LOCATIONS = {"previous": 1, "cumulative": 1, "both": 2}
"""Input of the filters → its number of channels."""

NAMES = {
    "mlp_dec.weight": "W_q.weight",
    "mlp_enc.weight": "W_k.weight",
    "mlp_enc.bias": "W_k.bias",
    "mlp_att.weight": "U.weight",
    "loc_conv.weight": "filters",
    "gvec.weight": "w_v.weight",
    "gvec.bias": "w_v.bias",
    "query_layer.weight": "W_q.weight",
    "memory_layer.weight": "W_k.weight",
    "location_layer.location_conv.weight": "filters",
    "location_layer.location_dense.weight": "U.weight",
    "v.weight": "w_v.weight",
    "v.bias": "w_v.bias",
}
"""Keys in state dicts of ESPnet (`AttLoc`) and of Tacotron 2 → anyscore's keys. NVIDIA's
Tacotron 2 has `.linear_layer` or `.conv` before `.weight`."""


@named_tuple
class LocationKeys(NamedTuple):
    """Prepared keys: projected (B, T_k, h), filters as a matrix, U, scale · w_v, and spans."""

    projected: Tensor
    matrix: Tensor
    projection: Tensor
    vector: Tensor
    spans: Spans | None

    def reorder(self, index: Tensor) -> LocationKeys:
        """Return the keys with entry i of the batch from entry index[i]."""
        spans = None if self.spans is None else [self.spans[i] for i in index.tolist()]
        return self._replace(projected=self.projected.index_select(0, index), spans=spans)


class LocationSensitive(StepwiseAttention):
    """Attention by content and by the weights of earlier steps.

        e_ij = scale · w_vᵀ tanh(W_q q_i + W_k k_j + U f_ij)        f_i = F * location_i
        α_i = softmax_j e_ij

    location_i is the weights of step i − 1, the sum of the weights of all earlier steps, or both
    as two channels. A step computes filters, projection and query in one product, in blocks that
    stay in the CPU's cache. Training keeps T_q × T_k numbers, never times filters or hidden.
    Derivatives are of first order.

    Args:
        query_size, key_size: the widths d_q and d_k.
        hidden: the width h.
        filters: the number k of filters. By default 32.
        kernel: the width r of the filters, odd. By default 31.
        location: "previous" (the default; Chorowski, ESPnet), "cumulative" or "both" (Tacotron 2).
        initial: the weights before the first step: "uniform" over the allowed keys (the default;
            ESPnet), or "zero" (Tacotron 2). At the first step they are the input of the filters in
            every channel. Later sums leave them out.
        bias: True adds a bias to W_k. By default False.
        scale: the sharpening factor; 2 in ESPnet. By default 1.
        smoothing: True computes weights σ(e_ij) / Σ_l σ(e_il) in place of a softmax. w_v then has
            a bias, which would cancel in a softmax. By default False.
        window: (before, after), the numbers of keys that may be attended on each side of the peak
            of the last weights, from the second step on. By default None, all. ESPnet's
            backward_window=1 and forward_window=3 are (1, 2). The CPU skips other keys.

    State dicts of ESPnet's `AttLoc` and of NVIDIA's Tacotron 2 load by their names. `AttLoc` needs
    location="previous", scale=2, bias=True; Tacotron 2 needs location="both", initial="zero".

    Inside `ForwardAttention`, `MonotonicAttention` and `MoChA` the outer layer computes the
    weights, the initial weights and the peaks of windows.

    Raises:
        TypeError, ValueError: A size is no integer ≥ 1, the kernel is even, or an option is
            unknown.

    Sources: Chorowski et al. 2015, Attention-Based Models for Speech Recognition, eq. 8 and 9, and
    sections 2.2 and 2.3 for smoothing and windows; Shen et al. 2018, Tacotron 2, section 2.2.

    >>> import torch
    >>> from anyscore.torch import LocationSensitive
    >>> layer, keys = LocationSensitive(20, 16, 8), torch.randn(2, 50, 16)
    >>> state = layer.start(keys, valid_lens=torch.tensor([50, 30]))
    >>> for query in torch.randn(3, 2, 20):
    ...     output, weights, state = layer.step(query, state)
    >>> output.shape, weights.shape
    (torch.Size([2, 16]), torch.Size([2, 50]))
    >>> layer(torch.randn(2, 7, 20), keys).shape
    torch.Size([2, 7, 16])
    """

    def __init__(  # noqa: PLR0913 (options, by name)
        self,
        query_size: int,
        key_size: int,
        hidden: int,
        *,
        filters: int = 32,
        kernel: int = 31,
        location: str = "previous",
        initial: str = "uniform",
        bias: bool = False,
        scale: float = 1.0,
        smoothing: bool = False,
        window: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        check_size(query_size=query_size, key_size=key_size, hidden=hidden)
        check_size(filters=filters, kernel=kernel)
        if kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, so that it has a middle, got {kernel}.")
        for name, x, known in (
            ("location", location, tuple(LOCATIONS)),
            ("initial", initial, ("uniform", "zero")),
        ):
            if x not in known:
                options = ", ".join(map(repr, known))
                raise ValueError(f"{name} must be one of {options}, got {brief(x)}.")
        if window is not None and not _is_window(window):
            raise ValueError(f"window must be (before, after), integers ≥ 0, got {brief(window)}.")
        check_numbers(scale=scale)
        check_switches(bias=bias, smoothing=smoothing)
        self.query_size, self.key_size = query_size, key_size
        self.location, self.initial, self.scale = location, initial, scale
        self.smoothing, self.window = smoothing, window
        self.W_q = nn.Linear(query_size, hidden, bias=False)
        self.W_k = nn.Linear(key_size, hidden, bias=bias)
        self.U = nn.Linear(filters, hidden, bias=False)
        self.filters = nn.Parameter(torch.empty(filters, LOCATIONS[location], kernel))
        self.w_v = nn.Linear(hidden, 1, bias=smoothing)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights from the uniform distribution of Glorot and Bengio 2010; biases are 0."""
        nn.init.xavier_uniform_(self.filters)
        for linear in (self.W_q, self.W_k, self.U, self.w_v):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def energies(self, query: Tensor, state: State) -> tuple[Tensor, LocationKeys]:
        """Return the energies of one query of each sequence.

        Energies of masked keys, and of keys outside the window, are arbitrary.

        Args:
            query: (B, d_q).
            state: from `start` of this layer, or from its last step.

        Returns:
            (energies e (B, T_k), keys for the next step).

        Raises:
            TypeError, ValueError: The query has another width or dtype.
        """
        self._check("query", query, self.query_size)
        keys: LocationKeys = state.keys
        weights = state.weights
        total = state.total if state.steps else weights
        seen = {"previous": [weights], "cumulative": [total]}
        channels = seen.get(self.location, [weights, total])
        dtype, device = keys.projected.dtype, keys.projected.device.type
        query = self.W_q(query).to(dtype)
        with without_autocast(device):
            energies, projected = location_energies(
                query,
                keys.projected,
                torch.stack(channels, 1),
                keys.matrix,
                keys.projection,
                keys.vector,
                self._spans(state),
            )
        energies = energies.to(keys.matrix.dtype)  # float32 or better
        if self.w_v.bias is not None:
            energies = energies + self.scale * self.w_v.bias
        return energies, keys._replace(projected=projected)

    def _initial(self, keys: Tensor, allowed: Tensor | None) -> Tensor:
        dtype = torch.promote_types(keys.dtype, torch.float32)
        weights = keys.new_zeros(keys.shape[:2], dtype=dtype)
        return weights if self.initial == "zero" else softmax(weights, allowed)

    def _prepare(self, keys: Tensor, state: State) -> LocationKeys:
        self._check("keys", keys, self.key_size)
        traced = (
            torch._C._get_tracing_state() or torch.compiler.is_exporting()
        )  # for other lengths too
        of_cpu = keys.device.type == "cpu" and not traced
        spans = _spans(state.allowed, keys) if of_cpu else None
        matrix = toeplitz(self.filters.to(state.weights.dtype))
        projected = self.W_k(keys)
        dtype = projected.dtype
        vector = (self.scale * self.w_v.weight[0]).to(dtype)
        return LocationKeys(projected, matrix, self.U.weight.to(dtype), vector, spans)

    def _move_on(self, query: Tensor, state: State) -> tuple[Tensor, State]:
        energies, keys = self.energies(query, state)
        if self.smoothing:
            energies = nn.functional.logsigmoid(energies)
        weights = softmax(energies, self.reached(state))
        return weights, state.moved(weights, keys)

    def knows_keys(self, keys: Any) -> bool:
        """Return whether a layer of these sizes prepared the keys of a state.

        Args:
            keys: the keys of a state.
        """
        if not isinstance(keys, LocationKeys):
            return False
        k, channels, kernel = self.filters.shape
        shape = channels * (COLUMNS + kernel - 1), COLUMNS * (k + 1)
        return keys.matrix.shape == shape and keys.projection.shape == self.U.weight.shape

    def _check(self, name: str, x: Tensor, width: int) -> None:
        """Check that queries or keys have the layer's width and dtype.

        Raises:
            TypeError, ValueError: another width or dtype.
        """
        if x.shape[-1] != width:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected (..., {width}).")
        if x.dtype != self.filters.dtype and not torch.is_autocast_enabled(x.device.type):
            found, ours = (str(y.dtype).removeprefix("torch.") for y in (x, self.filters))
            raise TypeError(
                f"{name} is {found} but the parameters are {ours}: convert them to one dtype."
            )

    def reached(self, state: State) -> Tensor | None:
        """Return booleans (B, T_k): True for keys that this step may attend; None: all.

        Args:
            state: from `start` of this layer, or from its last step.
        """
        if self.window is None or not state.steps:
            return state.allowed
        before, after = self.window
        distance = torch.arange(state.weights.shape[1], device=state.weights.device)
        distance = distance - state.weights.argmax(-1, keepdim=True)
        near = (distance >= -before) & (distance <= after)
        return near if state.allowed is None else near & state.allowed

    def _spans(self, state: State) -> Spans | None:
        """Return the ranges of keys that this step computes on the CPU; None elsewhere."""
        spans: Spans | None = state.keys.spans
        if spans is None or self.window is None or not state.steps:
            return spans
        before, after = self.window
        peaks = state.weights.argmax(-1).tolist()
        return [
            (max(start, peak - before), min(stop, peak + after + 1))
            for (start, stop), peak in zip(spans, peaks, strict=True)
        ]

    def extra_repr(self) -> str:
        """Describe the options in the repr of a module."""
        options = {"location": self.location, "initial": self.initial, "scale": self.scale}
        options |= {"smoothing": self.smoothing, "window": self.window}
        return ", ".join(f"{name}={x!r}" for name, x in options.items())

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for key in [key for key in state_dict if key.startswith(prefix)]:
            plain = key[len(prefix) :].replace(".linear_layer.", ".").replace(".conv.", ".")
            if plain not in NAMES:
                continue
            ours, x = NAMES[plain], state_dict.pop(key)
            if ours == "w_v.bias" and self.w_v.bias is None:
                continue  # the bias cancels in a softmax
            if ours == "filters" and x.dim() == 4:  # ESPnet convolves over (1, T_k)
                x = x[:, :, 0]
            state_dict[prefix + ours] = x
        super()._load_from_state_dict(state_dict, prefix, *args)


def _is_window(x: Any) -> bool:
    pair = isinstance(x, tuple) and len(x) == 2
    return pair and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in x)


def _spans(allowed: Tensor | None, keys: Tensor) -> Spans:
    """Return for each sequence the range from its first to its last allowed key."""
    batch, length = keys.shape[:2]
    if allowed is None or not length:
        return [(0, length)] * batch
    numbers = torch.arange(length)
    starts = torch.where(allowed, numbers, length).amin(1).tolist()
    stops = torch.where(allowed, numbers + 1, 0).amax(1).tolist()
    return list(zip(starts, stops, strict=True))
