"""`anyscore bench` on the command line: options and checks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from anyscore.lab.cli.output import print_json, typed_command
from anyscore.lab.errors import InputError, check_name
from anyscore.lab.run_folder import run_folder

_SHAPES = "4,512,512,128,128", "64,30,50,256,256", "64,1,50,256,512"
_GPU_SHAPES = "32,4096,4096,64,64", "32,1,4096,64,64", "32,1,65536,64,64", "4,512,512,128,128"
GPU_MINUTES = 8.0
QUICK_SHAPES = "2,128,128,64,64", "16,1,50,64,64"

BENCH_HELP = (
    "Measure the time and memory of each score on this machine, beside plain PyTorch.\n\n"
    "[bold]A quick run[/]:\n\n"
    "    anyscore bench --quick\n\n"
    "[bold]Your own shape[/]: batch, queries, keys, width of the score, width of the values.\n\n"
    "    anyscore bench --score additive --shape 32,100,100,64,64\n\n"
    "All programs do the same work, in turns, in one process. Results are first checked against "
    "float64; a wrong result gets no time. The rivals are eager (the broadcast formula in "
    "PyTorch), compile (torch.compile of that formula) and dot (the faster of two dot products in "
    "PyTorch). The table shows each rival's time divided by anyscore's time, as a median, and the "
    "memory of each. Ctrl-C stops early and writes the results so far.\n\n"
    "[bold]A GPU[/]: forward pass, training, a decoder's step and the edges of a graph, in less "
    "than eight minutes.\n\n"
    "    anyscore bench --device cuda\n\n"
    "Without --shape the score gatv2 is also measured over the edges of a random graph, beside "
    "plain PyTorch. Other libraries are compared by `python -m benchmarks` in the repository."
)

# Options that `python -m benchmarks` has too.
Threads = Annotated[
    int | None,
    typer.Option(help="Number of CPU threads, 1 or more.", show_default="PyTorch's number"),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="Dtype of the tensors: float32 or bfloat16.",
        show_default="float32; with --device cuda: bfloat16",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the content of bench.json, and nothing else.")
]


def bench(
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="Shape B,T_q,T_k,H,D_v: batch, queries, keys, width of the score, width of the "
            "values. It may be given several times. For one or two queries the keys of the "
            "additive score are prepared in advance, as in a decoder.",
            show_default=f"{', '.join(_SHAPES)}; with --device cuda: {', '.join(_GPU_SHAPES)}",
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="Names of the scores, separated by commas: additive, gatv2, laplace, gaussian, "
            "euclidean, student_t, lorentz, scaled_dot, softplus (a pair from a formula).",
            show_default="all; with --device cuda: additive, and gatv2 over edges",
        ),
    ] = None,
    rivals: Annotated[
        str | None,
        typer.Option(
            help="Names of the rivals, separated by commas: eager, compile, dot.",
            show_default="eager,compile,dot; with --quick: eager,dot",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="Device: cpu, or cuda (an NVIDIA GPU from Ampere on).")
    ] = "cpu",
    threads: Threads = None,
    dtype: Dtype = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Minutes for everything. No work is begun in the last 45 seconds; the report "
            "names the work left out.",
            show_default="no limit; with --device cuda: 8",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Small shapes, few rounds and no memory, in a minute or two."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for bench.json and bench.md, new or empty.",
            show_default="runs/bench-DATE-TIME",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Annotated[
        bool, typer.Option(help="Print only the place of the files.", show_default="off")
    ] = False,
) -> None:
    """Check the options of a benchmark, and run it."""
    check_threads(threads)
    check_above_0("--minutes", minutes)
    check_name("--device", device, ("cpu", "cuda"))
    # Imported here because they import PyTorch: help and errors should not wait for it.
    import torch

    from anyscore.lab.bench.formulas import FORMULAS
    from anyscore.lab.bench.graphs import EDGES
    from anyscore.lab.bench.run import BENCH_FILE, TABLE_FILE, Settings, ours_failed
    from anyscore.lab.bench.run import bench as run
    from anyscore.lab.bench.terminal import TerminalWatcher
    from anyscore.lab.bench.timing import Pace
    from anyscore.lab.bench.variants import RIVALS
    from anyscore.lab.bench.work import DTYPES, fitting_shapes
    from anyscore.lab.console import PlainConsole

    check_name("--dtype", dtype or "float32", DTYPES)
    usual = [name for name in RIVALS if name != "compile" or not quick]
    gpu = device == "cuda"
    shapes = QUICK_SHAPES if quick else _GPU_SHAPES if gpu else _SHAPES
    scores = ("additive",) if gpu else tuple(FORMULAS)
    if score is not None:
        scores = several("--score", score, FORMULAS)
    over_edges = not shape and (score is None or "gatv2" in scores)
    settings = Settings(
        shapes=fitting_shapes(shape or shapes, device),
        scores=scores,
        rivals=several("--rivals", ",".join(usual) if rivals is None else rivals, RIVALS),
        threads=threads or torch.get_num_threads(),
        dtype=dtype or ("bfloat16" if gpu else "float32"),
        device=device,
        edges=(EDGES // 10 if quick else EDGES) if over_edges else 0,
        weighed=not quick,
        minutes=minutes or (GPU_MINUTES if gpu else None),
        pace=Pace(rounds=7, seconds=0.5) if quick else Pace(rounds=15, seconds=2.0),
    )
    check_gpu(device)
    console = PlainConsole()

    def show(record: dict[str, Any], folder: Path) -> None:
        console.print(f"{BENCH_FILE}, {TABLE_FILE} in {folder}", highlight=False, soft_wrap=True)

    watcher = None if quiet or as_json else TerminalWatcher(console)
    carry_out(run, settings, out, watcher, as_json=as_json, show=show, failed=ours_failed)


def carry_out(
    run: Callable[..., dict[str, Any]],
    settings: Any,
    out: Path | None,
    watcher: Any,
    *,
    as_json: bool,
    show: Callable[[dict[str, Any], Path], None],
    failed: Callable[[dict[str, Any]], bool],
    program: str = "anyscore",
) -> None:
    """Measure and show the record; exit with 130 after Ctrl-C, with 1 if anyscore failed."""
    with run_folder(out, "bench") as folder:
        try:
            with redirect_stdout(sys.stderr if as_json else sys.stdout):  # libraries print
                record = run(settings, folder, watcher=watcher, command=typed_command(program))
        finally:
            if watcher is not None:
                watcher.stop()
    if as_json:
        print_json(record)
    else:
        show(record, folder)
    if record["interrupted"]:
        raise typer.Exit(130)
    if failed(record):
        raise typer.Exit(1)


def check_threads(threads: int | None) -> None:
    """Refuse a number of threads below 1."""
    if threads is not None and threads < 1:
        raise InputError(f"--threads: expected 1 or more, got {threads}")


def check_above_0(option: str, value: float | None) -> None:
    """Refuse a number that is not above 0."""
    if value is not None and not value > 0:
        raise InputError(f"{option}: expected more than 0, got {value:g}")


def check_gpu(device: str) -> None:
    """Refuse "cuda" without a GPU that can be measured."""
    reason = _without_gpu() if device == "cuda" else None
    if reason is not None:
        raise InputError(
            "--device cuda: needs an NVIDIA GPU of compute capability 8.0 (Ampere) or later, and "
            f"PyTorch for CUDA with Triton: {reason}"
        )


def _without_gpu() -> str | None:
    import torch

    if torch.version.cuda is None:
        return "this PyTorch was built without CUDA"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not torch.cuda.is_available():
            return "PyTorch finds none"
        capability = torch.cuda.get_device_capability(0)
    if capability < (8, 0):
        return f"it has compute capability {capability[0]}.{capability[1]}"
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed"
    return None


def several(option: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the comma-separated names, each once, in their order."""
    names = [name for name in (part.strip() for part in text.split(",")) if name]
    if not names:
        raise InputError(f"{option}: expected names, got none; there are {', '.join(known)}")
    for name in names:
        check_name(option, name, known)
    return tuple(dict.fromkeys(names))
