"""The classes and arguments of *Dive into Deep Learning*, for the layers of any framework.

A framework's class of the same name inherits from the class here, and then from `Attention`.
Constructors that a framework has itself are decorated by `additive`, `mlp` or `multi_head`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")


def book_arguments(
    sized: tuple[str, ...], **spellings: str
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Let a constructor also take the arguments of the book's editions.

    sized: the order of editions that begin with the sizes, recognised by the number of positional
    arguments. spellings: a name of the book → the constructor's name.

    Raises:
        TypeError: the constructor gets an argument twice, or too many by position.
    """

    def decorate(init: Callable[P, None]) -> Callable[P, None]:
        signature, of_book = inspect.signature(init), {spellings.get(x, x) for x in sized}
        positional = (x for x in signature.parameters.values() if x.kind is not x.KEYWORD_ONLY)
        ours = [x.name for x in positional if x.name in of_book]

        @wraps(init)
        def translated(self: Any, *args: Any, **named: Any) -> None:
            order = ours if len(args) <= len(ours) else sized
            if len(args) > len(order):
                raise TypeError(
                    f"{type(self).__name__} got {len(args)} positional arguments, expected "
                    f"({', '.join(ours)}) or ({', '.join(sized)}): pass the others by name."
                )
            passed = [(name, x, "by position") for name, x in zip(order, args, strict=False)]
            passed += [(name, x, f"as {name}=") for name, x in named.items()]
            arguments: dict[str, Any] = {}
            ways: dict[str, str] = {}
            for spelling, x, way in passed:
                name = spellings.get(spelling, spelling)
                if name in arguments:
                    raise TypeError(
                        f"{type(self).__name__} got {name} {ways[name]} and {way}: leave one out."
                    )
                arguments[name], ways[name] = x, way
            init(self, **arguments)

        translated.__signature__ = signature  # type: ignore[attr-defined]  # Keras reads this one
        return translated  # type: ignore[return-value]

    return decorate


additive = book_arguments(
    ("key_size", "query_size", "num_hiddens", "dropout"),
    hidden="num_hiddens",
    d_k="key_size",
    d_q="query_size",
)
mlp = book_arguments(("key_size", "query_size", "units", "dropout"), num_hiddens="units")
multi_head = book_arguments(
    ("key_size", "query_size", "value_size", "num_hiddens", "num_heads", "dropout", "bias"),
    num_hiddens="embedding_size",
    hidden_size="embedding_size",
    num_heads="n_heads",
    key_size="d_k",
    query_size="d_q",
    value_size="d_v",
    use_bias="bias",
)


class DotProductAttention:
    """Constructor of `DotProductAttention` in every framework."""

    def __init__(self, dropout: float = 0.0, **options: Any) -> None:
        super().__init__("scaled_dot", dropout=dropout, **options)  # type: ignore[call-arg]


class AdditiveAttention:
    """Constructor of `AdditiveAttention` in every framework."""

    @additive
    def __init__(
        self,
        num_hiddens: int,
        dropout: float = 0.0,
        *,
        query_size: int | None = None,
        key_size: int | None = None,
        bias: bool = False,
        **options: Any,
    ) -> None:
        sizes: dict[str, Any] = {"hidden": num_hiddens, "d_q": query_size, "d_k": key_size}
        super().__init__("additive", dropout=dropout, bias=bias, **sizes, **options)  # type: ignore[call-arg]


class MLPAttention(AdditiveAttention):
    """Constructor of `MLPAttention` in every framework."""

    @mlp
    def __init__(self, units: int, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(units, dropout, **options)
