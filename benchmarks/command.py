"""`python -m benchmarks` on the command line: options checked and passed on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from anyscore.lab.cli.bench import (
    GPU_MINUTES,
    QUICK_SHAPES,
    Dtype,
    Json,
    Threads,
    carry_out,
    check_above_0,
    check_gpu,
    check_threads,
    several,
)
from anyscore.lab.console import PlainConsole
from anyscore.lab.errors import InputError, check_name

_SHAPES = (
    "4,512,512,128,128",
    "64,30,50,256,256",
    "64,1,50,256,512",
    "1,4096,4096,64,64",
)
_GPU_SHAPES = ("32,4096,4096,64,64",)
_OF_ALL_SCORES = {"dot", "pairs", "beyond", "graphs", "packed", "location", "kernels"}
"""Parts with scores of their own, whatever `--score` says."""
_GPU_QUICK_MINUTES = 3.0
_FRAMEWORK_SHAPES = {True: ("2,128,128,64,64",), False: ("4,512,512,128,128",)}  # by --quick
_FRAMEWORKS = ("torch", "jax", "tensorflow", "mxnet")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")

HELP = (
    "Measure how fast attention is here, against the libraries that one would use instead.\n\n"
    "    python -m benchmarks --quick\n\n"
    "[bold]Your own sizes[/]: batch, queries, keys, width of the score, width of the values.\n\n"
    "    python -m benchmarks --shape 32,100,100,64,64 --rivals eager,dot\n\n"
    "All do the same work in one process, in turns. Answers are checked against float64 first: "
    "a wrong answer gets no time. Rivals: eager (the broadcast formula in PyTorch), blocks (a few "
    "queries at a time), compile (torch.compile), flex (FlexAttention), cdist, keops, jax, keras, "
    "and dot, the best of what PyTorch has for a dot product of the same sizes (for scaled_dot "
    "itself also what torch.compile, JAX and ONNX Runtime have). Ctrl-C stops early and writes "
    "the results until then.\n\n"
    "[bold]A GPU[/]: forward pass, training, a decoder's step, the edges of a graph and single "
    "kernels, in less than eight minutes. Each part has its share of the time.\n\n"
    "    python -m benchmarks --device cuda\n\n"
    "[bold]A framework[/]: its calls against those that its user would write today.\n\n"
    "    python -m benchmarks --framework jax"
)


def bench(
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="B,T_q,T_k,H,D_v; may be given several times. With one or two queries the keys "
            "of the additive score are prepared in advance, as a decoder does.",
            show_default=", ".join(f"({s})" for s in _SHAPES),
        ),
    ] = None,
    score: Annotated[
        str,
        typer.Option(
            help="additive, gatv2, laplace, gaussian, euclidean, student_t, lorentz, scaled_dot, "
            "or softplus (a custom pair)."
        ),
    ] = "additive",
    rivals: Annotated[
        str | None,
        typer.Option(help="Comma-separated names.", show_default="all that are installed"),
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated names: speed, memory, growth, range, dot, pairs, beyond, graphs, "
            "packed, location, cache, isa; on a GPU: forward, training, step, graphs, kernels, "
            "small, narrow.",
            show_default="all; with --quick: speed,growth or forward,training",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    framework: Annotated[
        str | None,
        typer.Option(
            help="Compare calls of torch, jax, tensorflow or mxnet only, a small and a large one."
        ),
    ] = None,
    threads: Threads = None,
    dtype: Dtype = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Minutes for everything. The report names the parts that were left out or cut "
            "short; on a GPU each has its share of the time.",
            show_default="no end; with --device cuda: 8, with --quick: 3",
        ),
    ] = None,
    limit: Annotated[
        float, typer.Option(help="Seconds for the preparation of a rival on a GPU.")
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
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option(help="Print the summary alone.")] = False,
    record: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A run of record: write its medians to measurements/NAME-DATE.json too, also "
            "after Ctrl-C. `python docs/measurements.py` makes the tables of pages from it.",
        ),
    ] = None,
) -> None:
    """Check everything that the command line says about a benchmark, and pass it on."""
    check_threads(threads)
    check_above_0("--minutes", minutes)
    check_above_0("--limit", limit)
    if record is not None and (quick or not _NAME.fullmatch(record)):
        reason = "without --quick" if quick else f"of small letters and digits, got {record!r}"
        raise InputError(f"--record: expected a name {reason}")
    check_name("--device", device, ("cpu", "cuda"))
    if framework is not None:
        check_name("--framework", framework, _FRAMEWORKS)
        if device != "cpu":
            raise InputError("--framework is measured on the CPU; leave --device out")
        if score != "additive":
            raise InputError(f"--framework is measured with --score additive, got {score!r}")
        if find_spec(framework) is None:
            raise InputError(f"--framework {framework}: it is not installed")
    # Here, because they import PyTorch: help and complaints should not wait for it.
    import torch

    from anyscore.kernels.cpu import isa
    from anyscore.lab.bench.formulas import FORMULAS
    from anyscore.lab.bench.timing import Pace
    from anyscore.lab.bench.work import DTYPES, fitting_shapes
    from benchmarks.display import TableWatcher, show_summary
    from benchmarks.gpu_limits import Chip
    from benchmarks.record import note_of, rows_of, write
    from benchmarks.run import bench as run
    from benchmarks.run import ours_failed
    from benchmarks.stages import Settings, known_rivals, parts_of

    sizes: Iterable[str] = shape or (QUICK_SHAPES if quick else _SHAPES)
    gpu = device == "cuda"
    if not shape and (gpu or framework is not None):
        sizes = _GPU_SHAPES if gpu else _FRAMEWORK_SHAPES[quick]
    check_name("--score", score, FORMULAS)
    check_name("--dtype", dtype or "float32", DTYPES)
    if framework is not None and dtype not in (None, "float32"):
        raise InputError(f"--framework is measured in float32, got --dtype {dtype}")
    known_parts, known = parts_of(device, framework), known_rivals(device, framework)
    usual = list(known_parts)
    if quick and framework is None:
        usual = ["forward", "training"] if gpu else ["speed", "growth"]
    settings = Settings(
        shapes=fitting_shapes(sizes, device),
        score=score,
        rivals=None if rivals is None else several("--rivals", rivals, known),
        threads=threads or torch.get_num_threads(),
        dtype=dtype or ("bfloat16" if gpu else "float32"),
        parts=several("--parts", ",".join(usual) if parts is None else parts, known_parts),
        pace=Pace(rounds=15, seconds=3.0, turn=0.05, slow=10.0) if gpu else Pace(),
        device=device,
        framework=framework,
        minutes=minutes or ((_GPU_QUICK_MINUTES if quick else GPU_MINUTES) if gpu else None),
        limit=limit,
    )
    of_all_scores = set(settings.parts) <= _OF_ALL_SCORES
    for name in settings.rivals or ():
        if score not in known[name].scores and not of_all_scores:
            able = ", ".join(known[name].scores)
            raise InputError(f"--rivals: {name} cannot compute {score}; it can {able}")
    check_gpu(device)
    console = PlainConsole()

    def run_of_record(*given: Any, **options: Any) -> dict[str, Any]:
        found = run(*given, **options)
        if record is not None and found["results"]:
            about = {"instructions": isa()}
            if gpu:
                about = {"processor": Chip(**found["chip"]).described, "threads": None}
            machine = found["machine"] | about
            write(record, rows_of(found), machine, found["command"], note=note_of(found))
        return found

    carry_out(
        run_of_record,
        settings.quicker() if quick else settings,
        out,
        None if quiet or as_json else TableWatcher(console),
        as_json=as_json,
        show=partial(show_summary, console),
        failed=ours_failed,
        program="python -m benchmarks",
    )
