"""`anyscore bench` on the command line: options checked and passed on."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from anyscore.lab.errors import InputError
from anyscore.lab.run_folder import run_folder

DEFAULT_SHAPES = (
    "4,512,512,128,128",
    "64,30,50,256,256",
    "64,1,50,256,512",
    "1,4096,4096,64,64",
)
_QUICK_SHAPES = ("2,128,128,64,64", "16,1,50,64,64")

BENCH_HELP = (
    "Measure how fast attention is here, against what you would use instead.\n\n"
    "    anyscore bench --quick\n\n"
    "[bold]Your own sizes[/]: batch, queries, keys, width of the score, width of the values.\n\n"
    "    anyscore bench --shape 32,100,100,64,64 --rivals eager,dot\n\n"
    "All do the same work in one process, in turns. Answers are checked against float64 first: "
    "who is wrong gets no time. Rivals: eager (the broadcast formula in PyTorch), blocks (a few "
    "queries at a time), compile (torch.compile), flex (FlexAttention), cdist, jax, keras, and "
    "dot, the best of what PyTorch has for a dot product of the same sizes. Ctrl-C stops early "
    "and writes what was measured."
)


def bench(
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="B,T_q,T_k,H,D_v; may be given several times. With one or two queries the keys "
            "of the additive score are prepared in advance, as a decoder does.",
            show_default=", ".join(f"({s})" for s in DEFAULT_SHAPES),
        ),
    ] = None,
    score: Annotated[
        str, typer.Option(help="additive, gatv2, laplace, gaussian or scaled_dot.")
    ] = "additive",
    rivals: Annotated[
        str | None,
        typer.Option(help="Names with commas between them.", show_default="all that are installed"),
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(
            help="Of speed, memory, growth, range, pairs, isa.",
            show_default="all; with --quick: speed,growth",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Of the CPU.", show_default="as many as PyTorch uses")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes, few rounds: a minute or two.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for bench.json, bench.md and bench.png; must be new or empty.",
            show_default="runs/bench-DATE-TIME",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what bench.json holds, and nothing else.")
    ] = False,
    quiet: Annotated[bool, typer.Option(help="Print the summary alone.")] = False,
) -> None:
    """Everything the command line says about a benchmark, checked and passed on."""
    if threads is not None and threads < 1:
        raise InputError(f"--threads: expected 1 or more, got {threads}")
    # Here, because they import PyTorch: help and complaints should not wait for it.
    import torch

    from anyscore.lab.bench.display import TerminalWatcher, show_summary
    from anyscore.lab.bench.memory import available_bytes
    from anyscore.lab.bench.parts import PARTS, Settings
    from anyscore.lab.bench.rivals import RIVALS
    from anyscore.lab.bench.run import bench as run
    from anyscore.lab.bench.work import DTYPES, FORMULAS, Shape

    sizes = shape or (_QUICK_SHAPES if quick else DEFAULT_SHAPES)
    shapes = tuple(dict.fromkeys(Shape.parse(text) for text in sizes))
    for size in shapes:
        if size.least_bytes > available_bytes():
            need, free = size.least_bytes / 2**30, available_bytes() / 2**30
            raise InputError(
                f"--shape: ({size}) needs about {need:,.0f} GiB, there are {free:,.0f}; "
                "give a smaller one"
            )
    _one_of("--score", score, FORMULAS)
    _one_of("--dtype", dtype, DTYPES)
    usual = "speed,growth" if quick else ",".join(PARTS)
    settings = Settings(
        shapes=shapes,
        score=score,
        rivals=None if rivals is None else _several("--rivals", rivals, RIVALS),
        threads=threads or torch.get_num_threads(),
        dtype=dtype,
        parts=_several("--parts", usual if parts is None else parts, PARTS),
    )
    for name in settings.rivals or ():
        if score not in RIVALS[name].scores:
            able = ", ".join(RIVALS[name].scores)
            raise InputError(f"--rivals: {name} cannot compute {score}; it can {able}")
    if quick:
        settings = settings.quicker()
    console = Console()
    with run_folder(out, "bench") as folder:
        shown = None if quiet or as_json else TerminalWatcher(console)
        command = shlex.join(["anyscore", *sys.argv[1:]])
        try:
            record = run(settings, folder, watcher=shown, command=command)
        finally:
            if shown is not None:
                shown.stop()
    if as_json:
        print(json.dumps(record, ensure_ascii=False, indent=1))
    else:
        show_summary(console, record, folder)
    if record["interrupted"]:
        raise typer.Exit(130)
    if any(_ours_failed(result) for result in record["results"]):
        raise typer.Exit(1)


def _one_of(option: str, name: str, known: Iterable[str]) -> None:
    known = list(known)
    if name not in known:
        near = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"{option}: expected one of {', '.join(known)}, got {name!r}{meant}")


def _several(option: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Names with commas between them, each once, in the order given."""
    names = [name for name in (part.strip() for part in text.split(",")) if name]
    if not names:
        raise InputError(f"{option}: expected names, got none; there are {', '.join(known)}")
    for name in names:
        _one_of(option, name, known)
    return tuple(dict.fromkeys(names))


def _ours_failed(result: dict[str, Any]) -> bool:
    """Tell whether anyscore itself was wrong, or failed."""
    return bool(result["entrants"]) and result["entrants"][0]["problem"] is not None
