"""`anyscore bench` on the command line: options checked and passed on."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from anyscore.lab.console import PlainConsole
from anyscore.lab.errors import InputError
from anyscore.lab.run_folder import run_folder

DEFAULT_SHAPES = (
    "4,512,512,128,128",
    "64,30,50,256,256",
    "64,1,50,256,512",
    "1,4096,4096,64,64",
)
_QUICK_SHAPES = ("2,128,128,64,64", "16,1,50,64,64")
_GPU_SHAPES = ("32,4096,4096,64,64",)
_OF_ALL_SCORES = {"dot", "pairs", "beyond", "graphs", "packed", "location"}
"""Parts with scores of their own, whatever `--score` says."""
_GPU_MINUTES, _GPU_QUICK_MINUTES = 8.0, 3.0
_FRAMEWORK_SHAPES = {True: ("2,128,128,64,64",), False: ("4,512,512,128,128",)}  # by --quick
_FRAMEWORKS = ("torch", "jax", "tensorflow", "mxnet")

BENCH_HELP = (
    "Measure how fast attention is here, against what you would use instead.\n\n"
    "    anyscore bench --quick\n\n"
    "[bold]Your own sizes[/]: batch, queries, keys, width of the score, width of the values.\n\n"
    "    anyscore bench --shape 32,100,100,64,64 --rivals eager,dot\n\n"
    "All do the same work in one process, in turns. Answers are checked against float64 first: "
    "who is wrong gets no time. Rivals: eager (the broadcast formula in PyTorch), blocks (a few "
    "queries at a time), compile (torch.compile), flex (FlexAttention), cdist, keops, jax, keras, "
    "and dot, the best of what PyTorch has for a dot product of the same sizes (for scaled_dot "
    "itself also what torch.compile, JAX and ONNX Runtime have). Ctrl-C stops early and writes "
    "what was measured.\n\n"
    "[bold]A GPU[/], or [bold]a framework[/] against what its user would write today:\n\n"
    "    anyscore bench --device cuda\n\n"
    "    anyscore bench --framework jax"
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
        str,
        typer.Option(
            help="additive, gatv2, laplace, gaussian, euclidean, student_t, lorentz, scaled_dot, "
            "or softplus, a pair of one's own."
        ),
    ] = "additive",
    rivals: Annotated[
        str | None,
        typer.Option(help="Names with commas between them.", show_default="all that are installed"),
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(
            help="Of speed, memory, growth, range, dot, pairs, beyond, graphs, packed, location, "
            "cache, isa; on a "
            "GPU of forward, training, step, narrow, small.",
            show_default="all; with --quick: speed,growth or forward,training",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    framework: Annotated[
        str | None,
        typer.Option(help="Of torch, jax, tensorflow, mxnet: its calls, a small and a large one."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Of the CPU.", show_default="as many as PyTorch uses")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32 or bfloat16.", show_default="float32; with --device cuda: bfloat16"
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="For everything; what is then left out is said.",
            show_default="no end; with --device cuda: 8, with --quick: 3",
        ),
    ] = None,
    limit: Annotated[
        float, typer.Option(help="Seconds in which one must be prepared on a GPU.")
    ] = 150.0,
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
    """Check everything that the command line says about a benchmark, and pass it on."""
    if threads is not None and threads < 1:
        raise InputError(f"--threads: expected 1 or more, got {threads}")
    for option, value in (("--minutes", minutes), ("--limit", limit)):
        if value is not None and not value > 0:
            raise InputError(f"{option}: expected more than 0, got {value:g}")
    _one_of("--device", device, ("cpu", "cuda"))
    if framework is not None:
        _one_of("--framework", framework, _FRAMEWORKS)
        if device != "cpu":
            raise InputError("--framework is measured on the CPU; leave --device out")
        if score != "additive":
            raise InputError(f"--framework is measured with --score additive, got {score!r}")
        if find_spec(framework) is None:
            raise InputError(f"--framework {framework}: it is not installed")
    # Here, because they import PyTorch: help and complaints should not wait for it.
    import torch

    from anyscore.lab.bench.formulas import FORMULAS
    from anyscore.lab.bench.gpu_limits import why_not
    from anyscore.lab.bench.memory import available_bytes
    from anyscore.lab.bench.run import bench as run
    from anyscore.lab.bench.run import ours_failed
    from anyscore.lab.bench.stages import Settings, known_rivals, parts_of
    from anyscore.lab.bench.timing import Pace
    from anyscore.lab.bench.work import DTYPES, Shape

    sizes: Iterable[str] = shape or (_QUICK_SHAPES if quick else DEFAULT_SHAPES)
    gpu = device == "cuda"
    if not shape and (gpu or framework is not None):
        sizes = _GPU_SHAPES if gpu else _FRAMEWORK_SHAPES[quick]
    shapes = tuple(dict.fromkeys(Shape.parse(text) for text in sizes))
    for size in () if gpu else shapes:
        if size.least_bytes > available_bytes():
            need, free = size.least_bytes / 2**30, available_bytes() / 2**30
            raise InputError(
                f"--shape: ({size}) needs about {need:,.0f} GiB, there are {free:,.0f}; "
                "give a smaller one"
            )
    _one_of("--score", score, FORMULAS)
    _one_of("--dtype", dtype or "float32", DTYPES)
    if framework is not None and dtype not in (None, "float32"):
        raise InputError(f"--framework is measured in float32, got --dtype {dtype}")
    known_parts, known = parts_of(device, framework), known_rivals(device, framework)
    usual = list(known_parts)
    if quick and framework is None:
        usual = ["forward", "training"] if gpu else ["speed", "growth"]
    settings = Settings(
        shapes=shapes,
        score=score,
        rivals=None if rivals is None else _several("--rivals", rivals, known),
        threads=threads or torch.get_num_threads(),
        dtype=dtype or ("bfloat16" if gpu else "float32"),
        parts=_several("--parts", ",".join(usual) if parts is None else parts, known_parts),
        pace=Pace(rounds=15, seconds=3.0, turn=0.05, slow=10.0) if gpu else Pace(),
        device=device,
        framework=framework,
        minutes=minutes or ((_GPU_QUICK_MINUTES if quick else _GPU_MINUTES) if gpu else None),
        limit=limit,
    )
    of_all_scores = set(settings.parts) <= _OF_ALL_SCORES
    for name in settings.rivals or ():
        if score not in known[name].scores and not of_all_scores:
            able = ", ".join(known[name].scores)
            raise InputError(f"--rivals: {name} cannot compute {score}; it can {able}")
    reason = why_not() if gpu else None
    if reason is not None:
        raise InputError(
            "--device cuda: needs an NVIDIA GPU of compute capability 8.0 (Ampere) or later, and "
            f"PyTorch for CUDA with Triton: {reason}"
        )
    if quick:
        settings = settings.quicker()
    console = PlainConsole()
    with run_folder(out, "bench") as folder:
        from anyscore.lab.bench.display import TerminalWatcher, show_summary

        shown = None if quiet or as_json else TerminalWatcher(console)
        command = shlex.join(["anyscore", *sys.argv[1:]])
        try:
            with redirect_stdout(sys.stderr if as_json else sys.stdout):  # libraries talk
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
    if ours_failed(record):
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
