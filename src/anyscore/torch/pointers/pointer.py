"""Pointer networks: the weights of attention are the output, and chosen keys are masked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from anyscore.call.lowering import lower_mask
from anyscore.functional.cache.prepare import PreparedKeys
from anyscore.layers.parameters import AnyScore
from anyscore.masks.objects import Keys
from anyscore.masks.offsets import concrete_values
from anyscore.ops import load
from anyscore.ops.checks import brief, check_integers, check_numbers, check_tensors
from anyscore.ops.pytrees import named_tuple
from anyscore.torch.attention import Attention
from anyscore.torch.layer import Layer, check_inputs
from anyscore.torch.pointers.pointer_energy import PointerEnergy

_xp = load("torch")


@named_tuple
class PointerKeys(NamedTuple):
    """Keys prepared for pointing and for glimpses; the result of `Pointer.prepare_keys`.

    Attributes:
        keys: (B, T_k, d_k).
        pointing: the prepared keys of the last score.
        glimpse: the prepared keys of glimpses; None without glimpses.
        left: booleans (B, T_k), True = may be pointed to; None: all.

    >>> import torch
    >>> from anyscore.torch import Pointer
    >>> pointer = Pointer("additive", glimpses=0, hidden=8, d_q=4, d_k=6)
    >>> prepared = pointer.prepare_keys(torch.ones(2, 5, 6), valid_lens=torch.tensor([5, 3]))
    >>> prepared.left.sum(-1), prepared.glimpse
    (tensor([5, 3]), None)
    """

    keys: Tensor
    pointing: PreparedKeys
    glimpse: PreparedKeys | None
    left: Tensor | None = None


@named_tuple
class Decoded(NamedTuple):
    """Sequences that a pointer chose; the result of `Pointer.decode`.

    Attributes:
        nodes: (B, steps), int64; −1 for a step without keys to choose.
        log_probabilities: (B, steps), of each choice; 0 for a step without a choice. Their sum
            over steps is the log-probability of the sequence.

    >>> import torch
    >>> from anyscore.torch import Pointer
    >>> pointer, keys = Pointer("dot", 0, 0, d_q=2, d_k=2), torch.tensor([[[1.0, 0], [3, 0]]])
    >>> nodes, log_probabilities = pointer.decode(keys[:, 0], keys, lambda nodes: keys[:, 0])
    >>> nodes, log_probabilities[:, 1]                      # one key is left in the second step
    (tensor([[1, 0]]), tensor([0.]))
    """

    nodes: Tensor
    log_probabilities: Tensor


class Pointer(Layer):
    """Pointer network: log-probabilities of keys, computed by attention without values.

        q₀ = q,  q_l = Σ_j softmax_j(g(q_{l−1}, k_j)) · k_j        for each of the glimpses l
        log p_j = log softmax_j(C · tanh(s(q_L, k_j)))              over the keys not yet visited

    g and s are scores of the same class with separate parameters. All glimpses share the
    parameters of g. Without clipping the argument of the last softmax is s itself.

    Args:
        score: as for `Attention`: a name, a class, or a score object. By default "additive".
        glimpses: the number of glimpses, which refine the query. By default 1; 0: none.
        clip: C > 0, or 0 for no clipping. By default 10.
        d_q, d_k: the widths of the queries and keys of a call. By default None: the first call
            finds them.
        options: hidden, bias, impl, device, dtype and scales, as for `Attention`.

    State dict: `pointing.W_q.weight` and so on, and `glimpse.W_q.weight` and so on.

    Raises:
        TypeError, ValueError: The score or an argument is unknown, a size is missing, or d_q ≠ d_k
            with two glimpses or more.

    Sources: Vinyals et al. 2015, Pointer Networks, eq. 3. Bello et al. 2016, Neural Combinatorial
    Optimization with Reinforcement Learning, appendix A (glimpses, and C · tanh, eq. 16). Kool et
    al. 2019, Attention, Learn to Solve Routing Problems!, eq. 7, where g and s are products.

    >>> import torch
    >>> from anyscore.torch import Pointer
    >>> pointer = Pointer("additive", glimpses=1, clip=10.0, hidden=8, d_q=4, d_k=6)
    >>> keys, left = torch.ones(2, 5, 6), torch.tensor([[True] * 5, [False] * 4 + [True]])
    >>> prepared = pointer.prepare_keys(keys)
    >>> pointer(torch.ones(2, 4), prepared, left).exp()
    tensor([[0.2000, 0.2000, 0.2000, 0.2000, 0.2000],
            [0.0000, 0.0000, 0.0000, 0.0000, 1.0000]], grad_fn=<ExpBackward0>)
    """

    def __init__(
        self,
        score: AnyScore = "additive",
        glimpses: int = 1,
        clip: float = 10.0,
        *,
        d_q: int | None = None,
        d_k: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_integers(0, glimpses=glimpses)
        check_numbers(0, clip=clip)
        for name in ("dropout", "heads", "kv_heads", "softcap", "sink", "normalizer", "projected"):
            if name in options:
                raise TypeError(f"a pointer takes no {name}=: leave it out.")
        if glimpses > 1 and None not in (d_q, d_k) and d_q != d_k:
            raise ValueError(
                f"glimpses={glimpses} go back in as queries: expected d_q = d_k, got {d_q}, {d_k}."
            )
        self.glimpses, self.clip = glimpses, float(clip)
        self.glimpse = Attention(score, d_q=d_q, d_k=d_k, **options) if glimpses else None
        self.pointing = PointerEnergy(score, d_q=d_k if glimpses else d_q, d_k=d_k, **options)
        self.pointing.clip = self.clip

    def prepare_keys(
        self, keys: Tensor, valid_lens: Any = None, *, mask: Any = None
    ) -> PointerKeys:
        """Prepare keys for many steps, as `anyscore.prepare_keys`.

        Args:
            keys: (B, T_k, d_k).
            valid_lens, mask: keys that no step may point to, as for `anyscore.prepare_keys`. Calls
                need not repeat either.

        Returns:
            `PointerKeys`.

        Raises:
            TypeError, ValueError: As `anyscore.prepare_keys`; or the layer does not know its
                widths yet.
        """
        pointing = self.pointing.prepare_keys(keys, valid_lens, mask=mask)
        glimpse = self.glimpse
        prepared = None if glimpse is None else glimpse.prepare_keys(keys, valid_lens, mask=mask)
        anything = mask is None and valid_lens is None
        left = None if anything else _booleans(keys, mask, valid_lens)
        return PointerKeys(keys, pointing, prepared, left)

    def forward(
        self,
        queries: Tensor,
        keys: Tensor | PointerKeys,
        mask: Any = None,
        valid_lens: Any = None,
    ) -> Tensor:
        """Return log-probabilities of the keys; −∞ for keys that a query may not point to.

        Args:
            queries: (B, d_q), one step; or (B, T_q, d_q), all steps of a known sequence.
            keys: (B, T_k, d_k), or `PointerKeys`.
            mask: True = may be pointed to. For one step booleans (B, T_k), the unvisited keys. For
                many steps as for `anyscore.attention`, such as the result of `unvisited`.
            valid_lens: as for `anyscore.attention`.

        Returns:
            (B, T_k) or (B, T_q, T_k), float32 or float64; all −∞ for a query without allowed keys.

        Raises:
            TypeError, ValueError: As `anyscore.attention`; or tensors have other ranks.
        """
        tensors = keys if isinstance(keys, PointerKeys) else PointerKeys(keys, keys, keys)  # type: ignore[arg-type]
        check_inputs(queries, tensors.keys, tensors.keys)
        ranks = queries.dim(), tensors.keys.dim()
        if ranks not in ((2, 3), (3, 3)):
            raise ValueError(
                f"queries has shape {tuple(queries.shape)} and keys {tuple(tensors.keys.shape)}, "
                "expected (B, d_q) or (B, T_q, d_q), and (B, T_k, d_k)."
            )
        step = ranks == (2, 3)
        if step:
            queries = queries[:, None]
            mask = mask[..., None, :] if isinstance(mask, Tensor) else mask
        if tensors.left is not None:
            mask = Keys(tensors.left) if mask is None else Keys(tensors.left) & mask
        for _ in range(self.glimpses):
            assert self.glimpse is not None
            queries = self.glimpse(queries, tensors.glimpse, tensors.keys, valid_lens, mask=mask)
        found: Tensor = self.pointing(queries, tensors.pointing, valid_lens, mask=mask)
        return found[:, 0] if step else found

    def decode(
        self,
        query: Tensor,
        keys: Tensor | PointerKeys,
        next_query: Callable[[Tensor], Tensor],
        *,
        mask: Tensor | None = None,
        valid_lens: Any = None,
        steps: int | None = None,
        sample: bool = False,
        generator: torch.Generator | None = None,
    ) -> Decoded:
        """Visit keys one after the other, each at most once, in all sequences of a batch.

        Args:
            query: (B, d_q), the query of the first step.
            keys: (B, T_k, d_k), or (1, T_k, d_k) for all sequences, or `PointerKeys`. Tensors are
                prepared here.
            next_query: a function from the nodes (B,) of the last step to the next query (B, d_q).
                A sequence without keys left has node 0, and its query is not used.
            mask: booleans (B, T_k), True = to be visited. The tensor is not changed. By default
                None, all.
            valid_lens: (B,), the number of keys of each sequence. By default None, all.
            steps: the number of steps. By default None: until no key is left.
            sample: True draws from the probabilities. False, the default, takes the most probable
                key.
            generator: the random generator of samples. By default None, PyTorch's.

        Returns:
            `Decoded`; its log-probabilities are differentiable, as for REINFORCE.

        Raises:
            TypeError, ValueError: As `forward`; or steps is no integer ≥ 0.

        >>> import torch
        >>> from anyscore.torch import Pointer
        >>> _ = torch.manual_seed(0)
        >>> pointer, keys = Pointer("dot", 0, 0, d_q=2, d_k=2), torch.randn(3, 4, 2)
        >>> rows = torch.arange(3)
        >>> nodes, _ = pointer.decode(keys[:, 0], keys, lambda nodes: keys[rows, nodes])
        >>> nodes.sort().values
        tensor([[0, 1, 2, 3],
                [0, 1, 2, 3],
                [0, 1, 2, 3]])
        """
        tensor = keys.keys if isinstance(keys, PointerKeys) else keys
        check_inputs(query, tensor, tensor)
        fit = query.dim() == 2 and tensor.dim() == 3
        if not fit or len(tensor) not in (1, len(query)):
            raise ValueError(
                f"query has shape {tuple(query.shape)} and keys {tuple(tensor.shape)}, expected "
                "(B, d_q) and (B, T_k, d_k)."
            )
        tensor = tensor.expand(len(query), -1, -1)
        unvisited = _allowed(tensor, mask, valid_lens)
        if isinstance(keys, PointerKeys):
            unvisited = unvisited if keys.left is None else unvisited & keys.left
        else:
            if self.pointing._bound is None:
                self(query, tensor, unvisited)  # a first call creates the parameters
            keys = self.prepare_keys(tensor, mask=Keys(unvisited))
        keys = keys._replace(left=None)  # `unvisited` includes `left`
        if steps is not None:
            check_integers(0, steps=steps)
        else:
            steps = int(unvisited.sum(-1).max()) if unvisited.numel() else 0
        nodes, found = [], []
        for i in range(steps):
            logarithms = self(query, keys, unvisited)
            noisy = logarithms.detach()
            if sample:  # the maximum of logits with Gumbel noise is a sample: Gumbel 1954
                noise = torch.empty_like(noisy).exponential_(generator=generator).log()
                noisy = noisy - noise
            least = torch.finfo(noisy.dtype).min  # probability 0 still precedes visited keys
            noisy = noisy.clamp(min=least).masked_fill(~unvisited, -torch.inf)
            node, left = noisy.argmax(-1, keepdim=True), unvisited.any(-1, keepdim=True)
            nodes.append(torch.where(left, node, -1))
            found.append(torch.where(left, logarithms.gather(-1, node), 0))
            if i + 1 < steps:
                unvisited = unvisited.scatter(-1, node, False)
                query = next_query(node[:, 0])
        if not nodes:
            none = tensor.new_zeros(len(tensor), 0)
            return Decoded(none.long(), none)
        return Decoded(torch.cat(nodes, -1), torch.cat(found, -1))

    def extra_repr(self) -> str:
        """Describe the layer in the repr of a module."""
        return f"glimpses={self.glimpses}, clip={self.clip}"


def unvisited(nodes: Tensor, n: int) -> Tensor:
    """Return the masks of the steps of known sequences: the keys not yet visited.

    Values are checked only if reading them does not wait for a device.

    Args:
        nodes: (B, steps), integers; −1 after the end of a sequence.
        n: the number of keys.

    Returns:
        Booleans (B, steps, n): True if no earlier step visits the key.

    Raises:
        TypeError, ValueError: nodes are no integers (B, steps) from −1 to n − 1.

    >>> import torch
    >>> from anyscore.torch import unvisited
    >>> unvisited(torch.tensor([[2, 0]]), 3).int()
    tensor([[[1, 1, 1],
             [1, 1, 0]]], dtype=torch.int32)
    """
    if not isinstance(nodes, Tensor) or nodes.dtype not in (torch.int32, torch.int64):
        got = nodes.dtype if isinstance(nodes, Tensor) else brief(nodes)
        raise TypeError(f"nodes must be an integer tensor (B, steps), got {got}.")
    check_integers(0, n=n)
    values = concrete_values(_xp, nodes)
    if values is not None and values.size and not (values.min() >= -1 and values.max() < n):
        raise ValueError(
            f"nodes are from {values.min()} to {values.max()}, expected −1 to {n - 1}: there are "
            f"n={n} keys."
        )
    chosen = nodes[..., None] == torch.arange(n, device=nodes.device)
    return chosen.cumsum(-2) - chosen.long() == 0


def _allowed(keys: Tensor, mask: Any, valid_lens: Any) -> Tensor:
    """Return booleans (B, T_k): True for keys that may be visited."""
    batch, n = keys.shape[:2]
    if mask is not None and getattr(mask, "shape", None) != (batch, n):
        raise ValueError(f"mask is {brief(mask)}, expected booleans {(batch, n)}.")
    return _booleans(keys, None if mask is None else Keys(mask), valid_lens)


def _booleans(keys: Tensor, mask: Any, valid_lens: Any) -> Tensor:
    """Return booleans (B, T_k): True for keys that a mask of any kind allows to all queries."""
    query = keys[:, :1]
    sizes = check_tensors(_xp, query, keys, keys)
    lowered = lower_mask(_xp, sizes, query, mask, valid_lens)
    everything = torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device)
    return everything if lowered is None else everything & cast(Tensor, lowered.boolean)[:, 0]
