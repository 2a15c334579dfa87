"""Calls across ranks: their shards, the check that ranks agree, and the choice of a scheme."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass, replace
from typing import Any, NoReturn

from anyscore import backends
from anyscore.backends.record import bias_of, operands_of, why_not
from anyscore.call.backend import Backend, Implementation, Plan, Result, choose
from anyscore.call.lowering import Lowered, lower_mask, prepare, shard_biases
from anyscore.call.prepared import PreparedKeys
from anyscore.call.shards import Exchange, Part, Scheme, Sharded
from anyscore.call.task import Call, Options, Task
from anyscore.functional.layouts import Contiguous, Layout
from anyscore.masks.lowered import LoweredMask
from anyscore.masks.lowered_edges import AnyLowered
from anyscore.masks.objects import parts
from anyscore.modifiers.biases import LoweredBias
from anyscore.modifiers.normalizers import POWERS, Sigmoid
from anyscore.ops import Array, Ops, accumulation, framework
from anyscore.ops.checks import Sizes, brief
from anyscore.score.factors import Factors

_FEW = 4
"""Queries are gathered if the keys are at least this many times as many."""


class Agreement(AbstractContextManager["Agreement"]):
    """The lowering of a call on all ranks: every rank learns of another call, or of an error.

    across: of the call, a layout of queries and keys, or a pair of them. In a pair None means that
    each rank has all queries. The name of an axis stands for Contiguous(name). like: a tensor of
    the framework. alone: whether to exchange nothing.

    Raises:
        TypeError: `across` is neither.
        ValueError: the calls of the ranks differ, or a rank has an error.
    """

    def __init__(self, across: Any, like: Any, alone: bool = False) -> None:
        pair = across if isinstance(across, tuple) and len(across) == 2 else (across, across)
        named = (Contiguous(x) if isinstance(x, str) else x for x in pair)
        self._queries, self._keys = named
        of_queries = self._queries is None or isinstance(self._queries, Layout)
        if not isinstance(self._keys, Layout) or not of_queries:
            raise TypeError(
                "across must be a layout such as Contiguous(mesh), or the name of an axis in JAX, "
                "or a pair of them, of queries and of keys. None for queries means all of them on "
                f"each rank. Got {brief(across)}."
            )
        backend = backends.load(framework(like) or "numpy")
        exchange = backend.exchange(self._keys.over)
        self._exchange: Exchange = _Alone(exchange.rank, exchange.ranks) if alone else exchange
        self._agreed = False

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, Exception) and not self._agreed:
            self._exchange.agree({}, error)

    def shards(self, sizes: Sizes) -> Sharded:
        """Return the shards of a call of which this rank has these sizes.

        Raises:
            ValueError: the layouts give this rank other numbers of tokens.
        """
        exchange, queries = self._exchange, self._queries
        of_keys = self._keys.of_rank(exchange, sizes.keys, "key")
        if queries is not None:
            queries = queries.of_rank(exchange, sizes.queries, "query")
        return Sharded(queries, of_keys, exchange)

    def agree(self, facts: Callable[[], dict[str, str]]) -> None:
        """Check that all ranks have these facts; an error comes before an exchange of tokens.

        facts: () → facts by name; called only if ranks are compared.

        Raises:
            ValueError: a fact differs between ranks, or another rank has an error.
        """
        self._agreed = True
        self._exchange.agree(facts() if self._exchange.compares else {}, None)

    def prepare(
        self,
        backend: Backend,
        call: Call,
        options: Options,
        sizes: Sizes,
        prepared: PreparedKeys | None,
        differentiable: Callable[[], bool],
    ) -> Task:
        """Lower a checked call to a task, once all ranks agree."""
        xp, sharded = backend.xp, self.shards(sizes)
        if sharded.queries is None:
            names = "query", "score", "bias", "bias_after"
            call = call._replace(**{n: self._exchange.shared(getattr(call, n)) for n in names})
        mask = lower_mask(xp, sizes, call.query, call.mask, call.valid_lens, sharded)
        biases = shard_biases(xp, call, sizes, sharded)

        def facts(call: Call = call) -> dict[str, str]:
            tensors = {"query": call.query, "key": call.key, "value": call.value}
            inputs = facts_of_inputs(xp, tensors, call.mask, call.valid_lens, mask, sharded)
            return inputs | _facts(xp, call, options) | {"gradients": str(differentiable())}

        self.agree(facts)
        call = call._replace(mask=None if mask is None else Lowered(mask), valid_lens=None)
        task = prepare(xp, call, sizes, prepared, differentiable, sharded)
        return task._replace(sharded=sharded, shard_biases=tuple(biases))


class _Alone:
    """The exchange of a plan: nothing comes from other ranks."""

    compares = False

    def __init__(self, rank: Any, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def agree(self, facts: dict[str, str], error: Exception | None) -> None:
        """Agree: there is no other rank."""

    def max(self, x: Array) -> Array:
        """Return x."""
        return x

    def shared(self, tree: Any) -> Any:
        """Return the tree."""
        return tree

    def once(self, x: Array) -> Array:
        """Return x."""
        return x

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"a plan exchanges nothing, but asks for {name}")


def facts_of_inputs(
    xp: Ops,
    tensors: dict[str, Any],
    mask: Any,
    valid_lens: Any,
    lowered: AnyLowered | None,
    sharded: Sharded,
) -> dict[str, str]:
    """Return facts about tensors and masks that must be the same on all ranks, by name."""
    facts = {name: _kind(xp, x, -2) for name, x in tensors.items()}
    facts["layout"] = repr((sharded.queries, sharded.keys))
    facts["mask"] = ", ".join(_described(xp, x) for x in parts(mask)) or "None"
    facts["valid_lens"] = str(valid_lens is not None)
    if isinstance(lowered, LoweredMask):  # `Sharded.own_keys` exchanges arrays of these dimensions
        bounds = [xp.shape(x)[:-1] for x in (lowered.start, lowered.stop) if x is not None]
        booleans = [xp.shape(x)[:-2] for x in (lowered.mask,) if x is not None]
        facts["leading dimensions of the mask"] = f"{bounds}, {booleans}"
    return facts


def _facts(xp: Ops, call: Call, options: Options) -> dict[str, str]:
    """Return what else must be the same on all ranks, by name."""
    facts = {"score": _described(xp, call.score)}
    for name in ("bias", "bias_after", "sink"):
        facts[name] = _described(xp, getattr(call, name))
    for name in ("softcap", "normalizer"):
        facts[name] = repr(getattr(call, name))
    for name, x in options._asdict().items():
        facts[name] = repr(x) if framework(x) is None else "a tensor"
    return facts


def _kind(xp: Ops, x: Any, tokens: int) -> str:
    """Return the dtype of x and its shape, the number of tokens left out."""
    if x is None:
        return "None"
    shape: list[Any] = list(xp.shape(x))
    shape[tokens] = "tokens"
    return f"{xp.dtype(x)} ({', '.join(map(str, shape))})"


def _described(xp: Ops, x: Any) -> str:
    """Return the class of a score, a mask or a bias with its fields; of a tensor the dtype."""
    if framework(x) is not None:
        return xp.dtype(x)
    if not is_dataclass(x):
        return brief(x) if x is None or isinstance(x, (int, float, str)) else type(x).__name__
    each = [f"{field.name}={_described(xp, getattr(x, field.name))}" for field in fields(x)]
    return f"{type(x).__name__}({', '.join(each)})"


def choose_sharded(
    backend: Backend, task: Task, options: Options
) -> tuple[Plan, Implementation, Task]:
    """Choose the implementation of the blocks and the scheme. Return (plan, implementation, task).

    Raises:
        NotImplementedError: the call does not run across ranks.
    """
    sharded = task.sharded
    assert sharded is not None
    if task.edges is not None:
        _refuse("the edges of a graph")
    if task.normalizer in POWERS:
        _refuse(f"normalizer={task.normalizer!r}, whose weights need all scores of a query")
    if options.return_scores:
        _refuse(
            "the matrix of scores or weights, which has a row for each query and a column for "
            "each key of the whole sequence"
        )
    if options.dropout:
        _check_dropout(sharded)
    if options.impl == "separable":
        _refuse('impl="separable"')
    task = _with_counts(backend.xp, task)
    one = task._replace(biases=task.shard_biases[0] if task.shard_biases else ())
    if (reason := why_not(one)) is not None:
        _refuse(f"this call, since {reason}")
    plan, implementation = choose(backend, one, options._replace(return_lse=True))
    scheme = _scheme(task, sharded)
    fused = implementation is not backend.reference
    f = task.score
    bias = f.query_bias if isinstance(f, Factors) and task.query_bias_cancels else None
    if scheme == "stay" and bias is not None:  # every rank adds it to the joined results
        task = task._replace(score=f._replace(query_bias=sharded.exchange.once(bias)))

    def run(task: Task, options: Options, seed: Any) -> Result:
        part = _part(backend.xp, task, options, seed)
        output, stats, _ = backend.attend_sharded(part, sharded, scheme, fused)
        return Result(None if output is None else backend.xp.astype(output, task.dtype), stats)

    reason = f"{plan.reason}; {_SCHEMES[scheme].format(sharded.exchange.ranks)}"
    plan = replace(plan, reason=reason)
    return plan, Implementation(plan.route, implementation.why_not, run), task


_SCHEMES: dict[Scheme, str] = {
    "ring": "keys pass around a ring of {} ranks",
    "stay": "keys stay on {} ranks, and sums join their results",
    "gather": "queries of {} ranks are gathered, keys stay, and sums join their results",
}


def _scheme(task: Task, sharded: Sharded) -> Scheme:
    """Return the scheme for the sizes of a call.

    A ring moves keys and values; gathering moves queries and outputs, and every rank holds all of
    them.
    """
    if sharded.queries is None:
        return "stay"
    has_biases = any(task.shard_biases)
    few = sharded.queries.tokens * _FEW <= sharded.keys.tokens
    return "gather" if few and not has_biases else "ring"


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(f"across does not take {what}: compute it on one rank.")


def _check_dropout(sharded: Sharded) -> None:
    """Check that chunks of keys begin where the counters of dropout do: see `modifiers.dropout`.

    Raises:
        ValueError: a chunk begins at another position.
    """
    for starts, lengths in zip(*sharded.keys, strict=True):
        for start, length in zip(starts, lengths, strict=True):
            if length and start % 4:
                raise ValueError(
                    f"dropout across ranks needs pieces of keys that begin at multiples of 4, and "
                    f"one begins at {start}: choose another number of tokens, or Uneven(mesh, "
                    "lengths)."
                )


def _with_counts(xp: Ops, task: Task) -> Task:
    """Return a task in which −log n of a sigmoid is a bias: a block does not know all n keys."""
    sharded, normalizer = task.sharded, task.normalizer
    if sharded is None or not isinstance(normalizer, Sigmoid) or normalizer.bias is not None:
        return task
    f, mask, keys = task.score, task.mask, sharded.keys.tokens
    some = f.a if isinstance(f, Factors) else f
    if isinstance(mask, LoweredMask):
        n = xp.maximum(mask.count_attended(), 1)
        n = xp.astype(xp.tensor(n, some), accumulation(task.dtype))
        n = xp.broadcast_to(n, (*xp.shape(n)[:-1], task.sizes.queries))
    else:
        zeros = 0.0 * xp.astype(some[..., 0] == 0, accumulation(task.dtype))
        n = zeros + float(max(keys, 1))
    shift = -xp.log(n)[..., None]
    chunks, found = sharded.query_chunks(xp, task.sizes.queries), []
    for chunk, biases in zip(chunks, task.shard_biases, strict=True):
        rows = shift[..., chunk.at : chunk.at + chunk.length, :]
        rows = xp.broadcast_to(rows, (*xp.shape(rows)[:-1], keys))
        found.append((*biases, LoweredBias(rows, False, True)))
    return task._replace(normalizer=Sigmoid(0.0), shard_biases=tuple(found))


def _part(xp: Ops, task: Task, options: Options, seed: Any) -> Part:
    """Return this rank's part of a task, for the kernels."""
    sharded = task.sharded
    assert sharded is not None
    each = [task._replace(biases=biases) for biases in task.shard_biases]
    x, s = operands_of(xp, each[0], options, seed)
    biases: list[Array | None] = [x.bias]
    biases += [bias_of(xp, other)[0] for other in each[1:]]
    chunks = sharded.query_chunks(xp, task.sizes.queries)
    x = x._replace(bias=None, packed=None)
    return Part(x, s, chunks, tuple(biases))
