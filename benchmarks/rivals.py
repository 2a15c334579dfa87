"""The rivals of a benchmark: anyscore, and the alternatives of a user."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from anyscore.lab.bench import graphs as plain_graphs
from anyscore.lab.bench import rivals, variants, work
from anyscore.lab.bench.comparison import Contestant
from anyscore.lab.bench.formulas import DOT, FORMULAS
from anyscore.lab.bench.rivals import Variant
from benchmarks import (
    graphs,
    packed,
    speech,
    variants_dot,
    variants_flex,
    variants_jax,
    variants_keops,
    variants_mxnet,
    variants_tensorflow,
    variants_torch,
)
from benchmarks.tasks import TASKS
from benchmarks.work import EXACT, Work


@dataclass(frozen=True)
class Rival(rivals.Rival):
    """An implementation of some work.

    scores, tasks: the supported ones.
    widest: the width up to which the rival takes part by default; it compiles for every shape.
    quick: whether the rival takes part in a quick benchmark by default: it compiles in seconds.
    package: the package to import.
    """

    scores: tuple[str, ...] = tuple(FORMULAS)
    tasks: tuple[str, ...] = ("attention",)
    widest: int | None = None
    quick: bool = True
    package: str = "torch"

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    def why_not(self, work: work.Work) -> str | None:
        if not self.installed:
            return f"{self.package} is not installed: pip install -r benchmarks/requirements.txt"
        return super().why_not(work)


def _by_name(*rivals: Rival) -> dict[str, Rival]:
    return {rival.name: rival for rival in rivals}


_FORMULA = tuple(name for name in FORMULAS if name != DOT)  # those whose formula is a rival
_WITHOUT_OUTER = "additive", "gatv2", "laplace", "gaussian"
_DISTANCES = "laplace", "gaussian", "euclidean", "student_t"
_ADDITIVE = ("additive",)
_ALL = tuple(TASKS)
_WITH_GRAPHS = (*_ALL, "graph")
_KEOPS = Rival(
    "keops",
    variants_keops.lazy,
    scores=tuple(name for name in FORMULAS if name != "lorentz"),
    tasks=("attention", "log-sum-exp"),
    quick=False,
    package="pykeops",
)
_PYG = Rival(
    "pyg",
    graphs.eager,
    scores=("gatv2",),
    tasks=("graph",),
    copies=(4, 7),
    package="torch_geometric",
)
_PYG_COMPILE = replace(_PYG, name="pyg-compile", variants=graphs.compiled, quick=False)
_ESPNET = Rival("espnet", speech.eager, scores=_ADDITIVE, tasks=("location",))
_BMM = Rival("bmm", variants_dot.products_of_cache, computes=DOT, tasks=("cache",))
_FLEX = Rival("flex", variants_flex.tanh, scores=("additive", "gatv2"), quick=False)

OURS = Rival("anyscore", variants_torch.anyscore_, tasks=_ALL)
_OF_TASK: dict[str, dict[str, Callable[[Any], list[Variant]]]] = {
    "graph": {
        OURS.name: plain_graphs.anyscore_,
        "eager": plain_graphs.eager,
        "compile": plain_graphs.compiled,
    },
    "packed": {OURS.name: packed.anyscore_},
    "location": {OURS.name: speech.anyscore_},
}
"""Variants of work of a kind of its own, by task and rival."""

RIVALS = _by_name(
    Rival("eager", variants.eager, scores=_FORMULA, tasks=_WITH_GRAPHS, copies=(2, 3)),
    Rival("blocks", variants_torch.blocks, scores=_FORMULA, tasks=_ALL),
    Rival("compile", variants.compiled, scores=_FORMULA, tasks=_WITH_GRAPHS, copies=(0, 3)),
    replace(_FLEX, widest=64),
    Rival("cdist", variants_torch.cdist, scores=_DISTANCES, tasks=_ALL),
    _KEOPS,
    _PYG,
    _PYG_COMPILE,
    Rival("own pair", variants_torch.own_pair, scores=("gatv2",), quick=False),
    Rival("jax", variants_jax.formula, scores=_WITHOUT_OUTER, copies=(1, 3), package="jax"),
    Rival("keras", variants_jax.keras_layer, scores=_ADDITIVE, copies=(2, 3), package="keras"),
    Rival("padded", packed.padded, tasks=("packed",)),
    Rival("dot", variants_dot.in_torch, computes=DOT, tasks=("attention", "cache", "packed")),
    _BMM,
    _ESPNET,
    replace(_ESPNET, name="espnet-compile", variants=speech.compiled, quick=False),
    Rival("dot-compile", variants_dot.compiled, scores=(DOT,), quick=False),
    Rival("dot-jax", variants_dot.in_jax, scores=(DOT,), package="jax"),
    Rival("dot-onnxruntime", variants_dot.in_onnxruntime, scores=(DOT,), package="onnxruntime"),
)
_ON_GPU = "attention", "graph"
ON_GPU = _by_name(
    OURS,
    Rival(EXACT, variants_torch.exact, scores=_ADDITIVE),
    Rival("separable", variants_torch.separable, scores=_ADDITIVE),
    Rival("eager", variants.eager, scores=_FORMULA, tasks=_ON_GPU),
    Rival("compile", variants_torch.compiled_in_chunks, scores=_FORMULA, tasks=_ON_GPU),
    _FLEX,
    replace(_FLEX, name="flex, sigmoid", variants=variants_flex.sigmoid, scores=_ADDITIVE),
    replace(_FLEX, name="flex, approximate", variants=variants_flex.approximate, scores=_ADDITIVE),
    _KEOPS,
    _PYG,
    _PYG_COMPILE,
    Rival("dot", variants_dot.in_torch, computes=DOT, tasks=("attention", "cache")),
    _BMM,
)


def _in_framework(
    package: str, ours: Callable[..., list[Variant]], *others: Rival
) -> dict[str, Rival]:
    return _by_name(Rival(OURS.name, ours, scores=_ADDITIVE, package=package), *others)


def _formula(
    package: str, formula: Callable[..., list[Variant]], copies: tuple[int, int] = (0, 0)
) -> Rival:
    return Rival("formula", formula, scores=_ADDITIVE, package=package, copies=copies)


IN_FRAMEWORKS = {
    "torch": _in_framework(
        "torch", variants_torch.anyscore_, _formula("torch", variants_torch.formula, (2, 3))
    ),
    "jax": _in_framework(
        "jax", variants_jax.anyscore_, _formula("jax", variants_jax.formula, (2, 3))
    ),
    "tensorflow": _in_framework(
        "tensorflow",
        variants_tensorflow.anyscore_,
        _formula("tensorflow", variants_tensorflow.formula),
        Rival("keras", variants_tensorflow.keras_layer, scores=_ADDITIVE, package="keras"),
    ),
    "mxnet": _in_framework(
        "mxnet", variants_mxnet.anyscore_, _formula("mxnet", variants_mxnet.formula)
    ),
}
"""By framework: anyscore first, then the calls that its users would write today."""

GRAPH = ", CUDA graph"
"""Behind a name: its kernels are launched together, as decoders do."""


def find(name: str, work: Work) -> Rival:
    """Look a rival up: by its name, with `GRAPH` behind it or " (isa)" of an instruction set."""
    known = {OURS.name: OURS} | RIVALS
    if work.framework is not None:
        known = IN_FRAMEWORKS[work.framework]
    elif work.device == "cuda":
        known = ON_GPU
    plain, _, isa = name.removesuffix(")").partition(" (")
    rival = known[plain.removesuffix(GRAPH)]
    of_task = _OF_TASK.get(work.task, {})
    rival = replace(rival, variants=of_task.get(rival.name, rival.variants))
    if isa:
        confined = partial(variants_torch.confined, isa=isa)
        return replace(rival, name=name, variants=partial(_changed, rival, confined))
    if name.endswith(GRAPH):
        return replace(rival, name=name, variants=partial(_changed, rival, variants_torch.graphed))
    return rival


def _changed(rival: Rival, change: Callable[[Variant], Variant], work: Work) -> list[Variant]:
    return [change(variant) for variant in rival.variants(work)]


def contestant(name: str, work: Work, label: str | None = None) -> Contestant:
    """Make a contestant of the name of a rival, see `find`, which is its label unless given."""
    return Contestant(label or name, find(name, work), work)
