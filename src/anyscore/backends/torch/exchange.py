"""The exchange of tensors between the processes of a group, by `torch.distributed`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from socket import gethostname
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from anyscore.backends.torch.modes import is_compiling
from anyscore.ops.checks import brief
from anyscore.score.base import Projection

_MOMENT = 0.1  # seconds
_MOMENTS = 30
"""The number of looks for a rank that has ended: its connections close before its process ends."""


class ProcessExchange:
    """An `Exchange` of a process group.

    rank: the number of this process in the group. ranks: the number of processes.
    """

    def __init__(self, over: dist.ProcessGroup) -> None:
        self._group = ref(over)  # weakly: graphs keep exchanges
        self.rank = dist.get_rank(self.group)
        self.ranks = dist.get_world_size(self.group)
        has_cpu = "cpu" in dist.get_backend_config(self.group)
        self._device = torch.device("cpu" if has_cpu else "cuda")

    @property
    def group(self) -> dist.ProcessGroup:
        """The group of the processes.

        Raises:
            ValueError: the group was destroyed.
        """
        return _alive(self._group)

    @property
    def compares(self) -> bool:
        """Tell whether `agree` compares facts: not for one rank, nor in a graph of a compiler."""
        return self.ranks > 1 and not is_compiling()

    def pass_on(
        self, arrays: list[Tensor], tokens: list[int], count: int
    ) -> Callable[[], list[Tensor]]:
        """Begin to send tensors to the next rank; see `Exchange.pass_on`."""
        if self.ranks == 1:
            return lambda: arrays
        if is_compiling():
            came = [self._passed(x, axis, count) for x, axis in zip(arrays, tokens, strict=True)]
            return lambda: came
        sent = [x.contiguous() for x in arrays]
        pairs = zip(arrays, tokens, strict=True)
        got = [x.new_empty(_with_tokens(x, axis, count)) for x, axis in pairs]
        send, receive = self._messages(dist.isend, sent, 1), self._messages(dist.irecv, got, -1)
        messages = [*send, *receive]
        if not messages:
            return lambda: got
        with self._naming_lost_ranks():
            works = dist.batch_isend_irecv(messages)

        def wait() -> list[Tensor]:
            with self._naming_lost_ranks():
                for work in works:
                    work.wait()
            sent.clear()
            return got

        return wait

    def _passed(self, x: Tensor, axis: int, count: int) -> Tensor:
        """Pass a tensor on in a graph of a compiler, which has no messages to one rank."""
        shape = _with_tokens(x, axis, count)
        sent, got = [0] * self.ranks, [0] * self.ranks
        sent[(self.rank + 1) % self.ranks] = x.numel()
        got[(self.rank - 1) % self.ranks] = math.prod(shape)
        flat = functional.all_to_all_single(x.reshape(-1), got, sent, self.group)
        return flat.view(shape)

    def _messages(self, way: Any, tensors: list[Tensor], step: int) -> list[dist.P2POp]:
        """Return messages to or from a neighbour. Empty tensors do not travel."""
        peer = (self.rank + step) % self.ranks
        return [
            dist.P2POp(way, x, group=self.group, group_peer=peer, tag=i)
            for i, x in enumerate(tensors)
            if x.numel()
        ]

    @contextmanager
    def _naming_lost_ranks(self) -> Iterator[None]:
        """Turn a failure of the exchange into a sentence that names the ranks that have ended."""
        try:
            yield
        except RuntimeError as error:
            sentence = _first_to_say(_lost(_PEERS.get(self.group, [])))
            reason = " ".join(str(error).split())[:200]
            raise RuntimeError(
                f"{sentence}, so this rank, {self.rank}, cannot go on ({reason})."
            ) from error

    def agree(self, facts: dict[str, str], error: Exception | None) -> None:
        """Check that all ranks call this with the same facts, and that no rank has an error."""
        if not self.compares:
            return
        text = f"{error}" if error is not None else repr(sorted(facts.items()))
        digest = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
        own = torch.tensor([digest, int(error is not None)], device=self._device)
        all_ranks = [torch.empty_like(own) for _ in range(self.ranks)]
        with self._naming_lost_ranks():
            if self.group not in _PEERS:
                peers: list[Any] = [None] * self.ranks
                dist.all_gather_object(peers, (gethostname(), os.getpid()), group=self.group)
                _PEERS[self.group] = peers
            dist.all_gather(all_ranks, own, group=self.group)
        codes = torch.stack(all_ranks).tolist()
        if all(code == codes[0] and not code[1] for code in codes):
            return
        found: list[Any] = [None] * self.ranks
        own_facts = facts, None if error is None else text
        with self._naming_lost_ranks():
            dist.all_gather_object(found, own_facts, group=self.group)
        if error is None:
            raise ValueError(_difference(found))

    def first(self, x: Tensor) -> Tensor:
        """Return the tensor of rank 0."""
        if is_compiling():
            return cast(Tensor, functional.broadcast(x, 0, self.group))
        if self.ranks > 1:
            with self._naming_lost_ranks():
                dist.broadcast(x, group=self.group, group_src=0)
        return x

    def sum(self, arrays: list[Tensor]) -> list[Tensor]:
        """Return the sums of each tensor, all of one dtype, over the ranks."""
        both = torch.cat([x.reshape(-1) for x in arrays])
        if is_compiling():
            both = functional.all_reduce(both, "sum", self.group)
        elif self.ranks > 1:
            with self._naming_lost_ranks():
                dist.all_reduce(both, group=self.group)
        parts = torch.split(both, [x.numel() for x in arrays])
        return [y.view(x.shape) for x, y in zip(arrays, parts, strict=True)]

    def max(self, x: Tensor) -> Tensor:
        """Return the maxima of x over the ranks."""
        if is_compiling():
            return cast(Tensor, functional.all_reduce(x.contiguous(), "max", self.group))
        x = x.clone(memory_format=torch.contiguous_format)
        if self.ranks > 1:
            with self._naming_lost_ranks():
                dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x

    def shared(self, tree: Any) -> Any:
        """Return tensors whose gradients are summed over the ranks; see `Exchange.shared`."""
        if self.ranks == 1 or tree is None:
            return tree
        if isinstance(tree, Tensor):
            return _Shared.apply(self, tree)[0]  # type: ignore[no-untyped-call]
        if not hasattr(tree, "tensors"):
            return tree
        found = tree.map(self.shared)
        projections = tree.projections() if hasattr(tree, "projections") else {}
        if not projections:
            return found
        calls = {name: self._shared_projection(x) for name, x in projections.items()}
        return replace(found, **calls)

    def _shared_projection(self, x: Projection) -> Projection:
        """Return a projection by a module, with shared parameters."""
        module = x.call
        if not isinstance(module, nn.Module):
            if any(y.requires_grad for y in x.tensors):
                raise NotImplementedError(
                    "a projection across ranks must be a module or a matrix: its gradients are "
                    "summed over the ranks."
                )
            return x
        names = [name for name, _ in module.named_parameters()]

        def call(y: Tensor) -> Tensor:
            parameters = _Shared.apply(self, *(module.get_parameter(n) for n in names))  # type: ignore[no-untyped-call]
            found: Tensor = torch.func.functional_call(
                module, dict(zip(names, parameters, strict=True)), (y,)
            )
            return found

        return Projection(call, x.shape, x.dtype, x.tensors)

    def once(self, x: Tensor) -> Tensor:
        """Return x with a gradient divided by the number of ranks; see `Exchange.once`."""
        found: Tensor = _Once.apply(x, self.ranks)  # type: ignore[no-untyped-call]
        return found

    def gather_differentiably(self, x: Tensor, axis: int, counts: list[int]) -> Tensor:
        """Return the tensors of all ranks; see `Exchange.gather_differentiably`."""
        found: Tensor = _Gather.apply(self, x, axis, counts)  # type: ignore[no-untyped-call]
        return found

    def gather(self, x: Tensor, axis: int, counts: list[int]) -> Tensor:
        """Return the tensors of all ranks, one after the other along an axis."""
        x = x.movedim(axis, 0).contiguous()
        most = max(counts)
        padded = x.new_zeros((most, *x.shape[1:]))
        padded[: len(x)] = x
        found = [torch.empty_like(padded) for _ in counts]
        if is_compiling():
            found = list(functional.all_gather_tensor(padded, 0, self.group).chunk(self.ranks))
        elif self.ranks > 1:
            with self._naming_lost_ranks():
                dist.all_gather(found, padded, group=self.group)
        else:
            found = [padded]
        whole = torch.cat([y[:n] for y, n in zip(found, counts, strict=True)])
        return whole.movedim(0, axis)


_PEERS: WeakKeyDictionary[dist.ProcessGroup, list[tuple[str, int]]] = WeakKeyDictionary()
"""The host and the process of each rank of a group."""


def _lost(peers: list[tuple[str, int]]) -> str:
    """Return the sentence about ranks that have ended."""
    host, gone = gethostname(), []
    here = [(rank, process) for rank, (other, process) in enumerate(peers) if other == host]
    if not peers:
        return "another rank has ended in the first exchange"
    for _ in range(_MOMENTS):
        for rank, process in here:
            if not _is_alive(process):
                gone.append(f"rank {rank} of {len(peers)} (process {process} on {host}) has ended")
        if gone:
            break
        time.sleep(_MOMENT)
    far = [str(rank) for rank, (other, _) in enumerate(peers) if other != host]
    if not gone and far:
        gone = [f"a rank on another machine does not answer, one of {', '.join(far)}"]
    return "; ".join(gone) or "the exchange between ranks failed, and every rank is alive"


def _is_alive(process: int) -> bool:
    """Return whether a process of this machine runs; one that has ended may wait for its parent."""
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:  # no /proc
        return True
    return state not in "ZX"


def _first_to_say(sentence: str) -> str:
    """Return the sentence of the first rank that noticed a loss: later ones see more ranks end."""
    with suppress(Exception):  # the store may have ended too
        store = dist.distributed_c10d._get_default_store()
        said = store.compare_set("anyscore/lost", "", sentence).decode()
        return said or sentence
    return sentence


class _Shared(torch.autograd.Function):
    """Returns tensors; sums their gradients over the ranks, in float32 or float64."""

    @staticmethod
    def forward(ctx: Any, exchange: ProcessExchange, *xs: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange = exchange
        return tuple(x.view_as(x) for x in xs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *ds: Tensor) -> tuple[Tensor | None, ...]:
        wide = torch.float64 if any(d.dtype == torch.float64 for d in ds) else torch.float32
        totals = ctx.exchange.sum([d.to(wide) for d in ds])
        return None, *(total.to(d.dtype) for total, d in zip(totals, ds, strict=True))


class _Once(torch.autograd.Function):
    """Returns a tensor; divides its gradient by the number of ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        return d / ctx.ranks, None


class _Gather(torch.autograd.Function):
    """Gathers tensors of all ranks; a gradient is the sum of the gradients on all ranks."""

    @staticmethod
    def forward(
        ctx: Any, exchange: ProcessExchange, x: Tensor, axis: int, counts: list[int]
    ) -> Tensor:
        ctx.exchange, ctx.axis, ctx.counts = exchange, axis, counts
        return exchange.gather(x, axis, counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[None, Tensor, None, None]:
        (total,) = ctx.exchange.sum([d])
        rank = ctx.exchange.rank
        return None, total.narrow(ctx.axis, sum(ctx.counts[:rank]), ctx.counts[rank]), None, None


def exchange_of(over: Any) -> ProcessExchange:
    """Return the exchange of a mesh of one dimension, or of a process group.

    Args:
        over: the mesh, or a weak reference to the group.

    Raises:
        TypeError: `over` is neither.
        ValueError: the mesh has more dimensions, or the group was destroyed.
    """
    if isinstance(over, ref):
        return ProcessExchange(_alive(over))
    if not hasattr(over, "get_group"):
        raise TypeError(
            f"a layout is over {brief(over)}, expected a DeviceMesh of one dimension, such as "
            'mesh["cp"], or a process group.'
        )
    if over.ndim != 1:
        raise ValueError(
            f"a layout is over a mesh of the dimensions {over.mesh_dim_names}, expected one: "
            'choose it, as in mesh["cp"].'
        )
    return ProcessExchange(over.get_group())


def _alive(group: ref[dist.ProcessGroup]) -> dist.ProcessGroup:
    found = group()
    if found is None:
        raise ValueError(
            "the process group of the layout was destroyed, or nothing else refers to it: make a "
            "layout of a group that lives."
        )
    return found


def _with_tokens(x: Tensor, axis: int, count: int) -> list[int]:
    """Return the shape of x with another number of tokens."""
    shape = list(x.shape)
    shape[axis] = count
    return shape


def _difference(found: list[tuple[dict[str, str], str | None]]) -> str:
    """Return a sentence about the first difference between facts of ranks."""
    for rank, (_, error) in enumerate(found):
        if error is not None:
            return f"rank {rank} of {len(found)} refuses the call, and so does this rank: {error}"
    facts = [facts for facts, _ in found]
    for name, expected in facts[0].items():
        for rank, other in enumerate(facts):
            if other.get(name) != expected:
                return (
                    f"{name} differs between ranks: {expected} on rank 0, and {other.get(name)} on "
                    f"rank {rank}. Every rank needs the same call."
                )
    return "the ranks disagree about the call"
