"""Who takes part in a benchmark: anyscore, and what a user would pick instead."""

from __future__ import annotations

from anyscore.lab.bench import jax as bench_jax
from anyscore.lab.bench import torch as bench_torch
from anyscore.lab.bench.rival import Rival
from anyscore.lab.bench.work import DOT

_BROADCAST = ("additive", "gatv2", "laplace", "gaussian")  # scores whose formula needs H at once

OURS = Rival("anyscore", bench_torch.anyscore_)
RIVALS = {
    rival.name: rival
    for rival in (
        Rival("eager", bench_torch.eager, _BROADCAST, copies=(2, 3)),
        Rival("blocks", bench_torch.blocks, _BROADCAST),
        Rival("compile", bench_torch.compiled, _BROADCAST, copies=(0, 3)),
        Rival("flex", bench_torch.flex, ("additive", "gatv2"), widest=64),
        Rival("cdist", bench_torch.cdist, ("laplace", "gaussian")),
        Rival("jax", bench_jax.formula, _BROADCAST, copies=(1, 3), package="jax"),
        Rival("keras", bench_jax.keras_layer, ("additive",), copies=(2, 3), package="keras"),
        Rival("dot", bench_torch.dot, computes=DOT),
    )
}
