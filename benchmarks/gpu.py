"""Additive attention on an NVIDIA GPU, beside what one would use instead.

    python benchmarks/gpu.py [--quick] [--json FILE] [--size B,H,T,width]

Results are compared with float64 first; who is right is then timed, in turns. README.md says how.
"""

from __future__ import annotations

import argparse
import sys
import warnings

from gpu_race import LIMIT, Deadline, Lost

MINUTES, QUICK_MINUTES = 8.0, 3.0


def problem() -> str | None:
    """Why nothing can be measured here."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="an impression, in three minutes")
    parser.add_argument("--json", metavar="FILE", help="also write what is measured to this file")
    parser.add_argument("--size", default="2,16,4096,64", metavar="B,H,T,width")
    parser.add_argument("--minutes", type=float, help=f"for everything; {MINUTES:g} unless given")
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help="seconds to prepare one; %(default)s"
    )
    asked = parser.parse_args(arguments)
    reason = problem()
    if reason is not None:
        print(
            "benchmarks/gpu.py needs an NVIDIA GPU of compute capability 8.0 (Ampere) or later, "
            f"and PyTorch for CUDA with Triton: {reason}.",
            file=sys.stderr,
        )
        return 2
    from gpu_bench import Bench
    from gpu_work import Size
    from gpu_worker import Worker

    try:
        size = Size.parse(asked.size)
    except ValueError as wrong:
        parser.error(f"--size: {wrong}")
    minutes = asked.minutes or (QUICK_MINUTES if asked.quick else MINUTES)
    bench = Bench(
        size, lambda: Worker("cuda"), Deadline(60 * minutes), asked.quick, asked.json, asked.limit
    )
    try:
        bench.run()
    except KeyboardInterrupt:
        print("\nstopped; above is what there is", file=sys.stderr)
        return 130
    except Lost as lost:
        print(f"the GPU cannot be used: {lost}", file=sys.stderr)
        return 1
    finally:
        bench.end()
    return int(bench.ours_failed())


if __name__ == "__main__":
    sys.exit(main())
