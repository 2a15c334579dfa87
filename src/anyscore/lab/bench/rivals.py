"""The contestants of a benchmark: anyscore, and what a user would pick instead."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from anyscore.lab.bench.formulas import DOT, FORMULAS
from anyscore.lab.bench.tasks import TASKS
from anyscore.lab.bench.work import Work

Call = Callable[[], Sequence[Any]]  # the work once: the output, and the gradients when training


class Unavailable(Exception):
    """A rival cannot do this work; the text says why in a few words."""


@dataclass(frozen=True)
class Variant:
    """One way to set a rival up. The fastest that is right is the one that is compared.

    compiles: whether the first call at a size compiles something.
    about: what else is to be written of it, as JSON can hold it.
    """

    how: str
    build: Callable[[], Call]
    compiles: bool = False
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rival:
    """One that does the work.

    variants: of a piece of work; a function, or the name of one in this package as "module.name",
        imported when it is first asked. It raises Unavailable where there are none.
    computes: the score, if not that of the work: "what would a dot product have cost?"
    scores, tasks: those it can do.
    copies: tensors of `Work.scores` × H elements held at once, in a forward pass and in training.
    widest: the width up to which it takes part without being asked for by name; it compiles for
        every shape.
    quick: whether it takes part in a quick benchmark without being asked for: it compiles in
        seconds.
    package: what it needs, and `extra` of anyscore that brings it.
    """

    name: str
    variants: Callable[[Work], list[Variant]] | str
    scores: tuple[str, ...] = tuple(FORMULAS)
    tasks: tuple[str, ...] = ("attention",)
    computes: str | None = None
    copies: tuple[int, int] = (0, 0)
    widest: int | None = None
    quick: bool = True
    package: str = "torch"
    extra: str | None = None

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    def variants_of(self, work: Work) -> list[Variant]:
        """List the variants that do this work, at least one. Raises: Unavailable."""
        if not isinstance(self.variants, str):
            return self.variants(work)
        module, name = self.variants.split(".")
        found: list[Variant] = getattr(importlib.import_module(f"{__package__}.{module}"), name)(
            work
        )
        return found

    def bytes_held(self, work: Work) -> int:
        """Estimate how much memory it takes, before the work is begun."""
        return 4 * (self.copies[work.training] * work.scores * work.shape.width + 4 * work.scores)


def _by_name(*rivals: Rival) -> dict[str, Rival]:
    return {rival.name: rival for rival in rivals}


_FORMULA = tuple(name for name in FORMULAS if name != DOT)  # those whose formula is a rival
_WITHOUT_OUTER = "additive", "gatv2", "laplace", "gaussian"
_DISTANCES = "laplace", "gaussian", "euclidean", "student_t"
_ALL = tuple(TASKS)
_KEOPS = Rival(
    "keops",
    "variants_keops.lazy",
    tuple(name for name in FORMULAS if name != "lorentz"),
    ("attention", "log-sum-exp"),
    quick=False,
    package="pykeops",
    extra="bench",
)
_PYG = Rival(
    "pyg",
    "variants_graph.eager",
    ("gatv2",),
    ("graph",),
    copies=(4, 7),
    package="torch_geometric",
    extra="bench",
)

_ESPNET = Rival("espnet", "variants_speech.eager", ("additive",), ("location",))

OURS = Rival("anyscore", "variants_torch.anyscore_", tasks=_ALL)
RIVALS = _by_name(
    Rival("eager", "variants_torch.eager", _FORMULA, _ALL, copies=(2, 3)),
    Rival("blocks", "variants_torch.blocks", _FORMULA, _ALL),
    Rival("compile", "variants_torch.compiled", _FORMULA, _ALL, copies=(0, 3)),
    Rival("flex", "variants_flex.tanh", ("additive", "gatv2"), widest=64, quick=False),
    Rival("cdist", "variants_torch.cdist", _DISTANCES, _ALL),
    _KEOPS,
    _PYG,
    replace(_PYG, name="pyg-compile", variants="variants_graph.compiled", quick=False),
    Rival("own pair", "variants_torch.own_pair", ("gatv2",), quick=False),
    Rival("jax", "variants_jax.formula", _WITHOUT_OUTER, copies=(1, 3), package="jax"),
    Rival("keras", "variants_jax.keras_layer", ("additive",), copies=(2, 3), package="keras"),
    Rival("padded", "variants_packed.padded", tasks=("packed",)),
    Rival("dot", "variants_dot.in_torch", tasks=("attention", "cache", "packed"), computes=DOT),
    Rival("bmm", "variants_dot.products_of_cache", tasks=("cache",), computes=DOT),
    _ESPNET,
    replace(_ESPNET, name="espnet-compile", variants="variants_speech.compiled", quick=False),
    Rival("dot-compile", "variants_dot.compiled", (DOT,), quick=False),
    Rival("dot-jax", "variants_dot.in_jax", (DOT,), package="jax"),
    Rival(
        "dot-onnxruntime",
        "variants_dot.in_onnxruntime",
        (DOT,),
        package="onnxruntime",
        extra="bench",
    ),
)
ON_GPU = _by_name(
    OURS,
    Rival("separable", "variants_torch.separable", ("additive",)),
    Rival("eager", "variants_torch.eager", _FORMULA),
    Rival("compile", "variants_torch.compiled", _FORMULA),
    Rival("flex", "variants_flex.tanh", ("additive", "gatv2"), quick=False),
    Rival("flex, sigmoid", "variants_flex.sigmoid", ("additive",), quick=False),
    Rival("flex, approximate", "variants_flex.approximate", ("additive",), quick=False),
    _KEOPS,
    Rival("dot", "variants_dot.in_torch", computes=DOT),
)
IN_FRAMEWORKS = {
    "torch": _by_name(
        Rival("anyscore", "variants_torch.anyscore_", ("additive",)),
        Rival("formula", "variants_torch.eager", ("additive",), copies=(2, 3)),
    ),
    "jax": _by_name(
        Rival("anyscore", "variants_jax.anyscore_", ("additive",), package="jax"),
        Rival("formula", "variants_jax.formula", ("additive",), copies=(2, 3), package="jax"),
    ),
    "tensorflow": _by_name(
        Rival("anyscore", "variants_tensorflow.anyscore_", ("additive",), package="tensorflow"),
        Rival("formula", "variants_tensorflow.formula", ("additive",), package="tensorflow"),
        Rival("keras", "variants_tensorflow.keras_layer", ("additive",), package="keras"),
    ),
    "mxnet": _by_name(
        Rival("anyscore", "variants_mxnet.anyscore_", ("additive",), package="mxnet"),
        Rival("formula", "variants_mxnet.formula", ("additive",), package="mxnet"),
    ),
}
"""By framework: what its user would write today, ours first."""

GRAPH = ", CUDA graph"
"""Behind a name: its kernels are launched together, as decoders do."""


def find(name: str, work: Work) -> Rival:
    """Look a rival up: by its name, with `GRAPH` behind it or " (isa)" of an instruction set."""
    known = {OURS.name: replace(OURS, variants=work.ours) if work.ours else OURS} | RIVALS
    if work.framework is not None:
        known = IN_FRAMEWORKS[work.framework]
    elif work.device == "cuda":
        known = ON_GPU
    plain, _, isa = name.removesuffix(")").partition(" (")
    rival = known[plain.removesuffix(GRAPH)]
    if isa:
        return Rival(name, lambda work: _modified("confined", rival, work, isa))
    if name.endswith(GRAPH):
        return Rival(name, lambda work: _modified("graphed", rival, work), computes=rival.computes)
    return rival


def _modified(how: str, rival: Rival, work: Work, *args: str) -> list[Variant]:
    from anyscore.lab.bench import variants_torch

    change = getattr(variants_torch, how)
    return [change(variant, *args) for variant in rival.variants_of(work)]
