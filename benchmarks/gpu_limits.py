"""A GPU's rates, the limits that our kernels' instructions set there, and the H200's targets."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from anyscore.lab.bench.work import FORWARD
from benchmarks.bars import judged

Result = dict[str, Any]


class Cost(NamedTuple):
    """Instructions of a thread for one (query, key, feature): all that are issued, of float32
    arithmetic, and of the special function unit: exponentials, reciprocals, tanh.
    """

    issued: float
    float32: float
    special: float


COSTS = {  # of anyscore's kernels, counted in code for capability 9.0: docs/gpu_kernels.md
    "forward": {
        "free": Cost(3.4, 2.75, 0.25),
        "clamped": Cost(4.4, 2.5, 0.5),
        "one by one": Cost(28.3, 20.0, 2.0),
    },
    "backward": {
        "free": Cost(15.3, 12.5, 1.25),
        "clamped": Cost(16.3, 12.3, 1.5),
        "one by one": Cost(97.0, 64.0, 6.0),
    },
}
SPECIAL = 16  # of them an SM does in a cycle
ISSUED = 128  # four schedulers, 32 threads each
LANES: dict[tuple[int, ...], int] = {(8, 0): 64}  # of float32 arithmetic, where they are not ISSUED


@dataclass(frozen=True)
class Chip:
    """A GPU. mhz: its clock under load; max_mhz: the highest; None where nobody says."""

    name: str
    capability: tuple[int, ...]
    sms: int
    l2_bytes: int
    memory_bytes: int
    mhz: float | None = None
    max_mhz: float | None = None
    driver: str | None = None
    uuid: str = ""

    @classmethod
    def first(cls) -> Chip:
        """Ask PyTorch and `nvidia-smi` about the first GPU."""
        import torch

        x = torch.cuda.get_device_properties(0)
        uuid = str(getattr(x, "uuid", ""))
        driver, most = smi(["driver_version", "clocks.max.sm"], uuid) or (None, None)
        return cls(
            x.name,
            (x.major, x.minor),
            x.multi_processor_count,
            getattr(x, "L2_cache_size", 0),
            x.total_memory,
            max_mhz=_number(most),
            driver=driver,
            uuid=uuid,
        )

    def under_load(self, torch_mhz: float | None) -> Chip:
        """Ask `nvidia-smi` for the present clock; torch_mhz: PyTorch's figure, used without one."""
        now = smi(["clocks.sm"], self.uuid) or (None,)
        return replace(self, mhz=_number(now[0]) or torch_mhz)

    @property
    def described(self) -> str:
        """Return name, multiprocessors and clocks, for a record."""
        clocks = [f"{self.mhz / 1000:.4g} GHz under load"] if self.mhz else []
        clocks += [f"at most {self.max_mhz / 1000:.4g} GHz"] if self.max_mhz else []
        return f"{self.name} ({', '.join([f'{self.sms} multiprocessors', *clocks])})"

    @property
    def clock(self) -> float | None:
        """In Hz, for limits: as fast as it ran, or else as it could."""
        mhz = self.mhz or self.max_mhz
        return None if mhz is None else 1e6 * mhz

    def limit(self, cost: Cost) -> float | None:
        """Triples a second that instructions of this cost allow."""
        if self.clock is None:
            return None
        lanes = LANES.get(tuple(self.capability), ISSUED)  # in JSON it was a list
        each = min(ISSUED / cost.issued, lanes / cost.float32, SPECIAL / cost.special)
        return self.sms * self.clock * each

    def limit_of(self, kind: str, tiles: dict[str, float] | None) -> float | None:
        """Return the limit of "forward" or "backward" for these shares of ways to compute tiles."""
        costs = COSTS[kind]
        shares = {way: share for way, share in (tiles or {"free": 1.0}).items() if share}
        if self.clock is None or not set(shares) <= set(costs):
            return None
        return 1 / sum(share / (self.limit(costs[way]) or 1) for way, share in shares.items())

    @property
    def limits(self) -> dict[str, float | None]:
        """All of them, triples a second; also if each took one tanh of the processor."""
        found = {
            f"{kind}, {way}": self.limit(cost)
            for kind, costs in COSTS.items()
            for way, cost in costs.items()
        }
        tanh = None if self.clock is None else self.sms * self.clock * SPECIAL
        return found | {"one tanh each": tanh}


def smi(fields: Sequence[str], uuid: str = "") -> tuple[str, ...] | None:
    """Fields that `nvidia-smi` knows of a GPU; None where it does not say."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    command += ["-i", f"GPU-{uuid.removeprefix('GPU-')}"] if uuid else []
    with suppress(OSError, subprocess.SubprocessError):
        run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        found = [x.strip() for x in run.stdout.splitlines()[0].split(",")] if run.stdout else []
        return tuple(found) if len(found) == len(fields) else None
    return None


def _number(text: str | None) -> float | None:
    with suppress(TypeError, ValueError):
        return float(text)  # type: ignore[arg-type]
    return None


def row_of(results: Sequence[Result], part: str, name: str) -> Result:
    """An entry by part and name, {} if there is none."""
    rows = (row for result in results if result["part"] == part for row in result["entrants"])
    return next((row for row in rows if row["name"] == name), {})


def rate(row: Result) -> float | None:
    """Triples a second."""
    return 1000 * row["triples"] / row["ms"] if row.get("ms") else None


def backward_rate(results: Sequence[Result], name: str = "anyscore") -> float | None:
    """Return the rate of the backward alone, without the time of the forward."""
    forward, both = (row_of(results, part, name).get("ms") for part in ("forward", "training"))
    if not forward or not both or both <= forward:
        return None
    triples: int = row_of(results, "training", name)["triples"]
    return float(1000 * triples / (both - forward))


def share_of_limit(row: Result, result: Result, chip: Chip) -> float | None:
    """Return the share of the limit that a forward reached; None if its tiles are unknown."""
    if "tiles" not in row or result["passes"] != FORWARD:
        return None
    reached, limit = rate(row), chip.limit_of("forward", row["tiles"])
    return reached / limit if reached and limit else None


def _fastest(results: Sequence[Result], part: str, prefix: str) -> float | None:
    """The ratio of the fastest whose name begins so."""
    rows = (row for result in results if result["part"] == part for row in result["entrants"])
    found = [x["ratio"]["median"] for x in rows if x["name"].startswith(prefix) and x["ratio"]]
    return min(found, default=None)


def _growth(results: Sequence[Result], part: str) -> float | None:
    """Peak memory at 2T over that at T."""
    small, large = (row_of(results, x, "anyscore").get("mib") for x in (part, f"{part} 2T"))
    return float(large / small) if small and large else None


def targets(results: Sequence[Result]) -> list[Result]:
    """Return the targets of an H200 beside what this GPU did: name, target, value, met."""
    separable = _fastest(results, "separable", "separable")
    forward = rate(row_of(results, "forward", "anyscore"))
    backward = backward_rate(results)
    found = [
        ("forward, 10¹² triples/s", forward and forward / 1e12, ">", 5),
        ("backward alone, 10¹² triples/s", backward and backward / 1e12, ">", 1.3),
        ("FlexAttention ÷ ours, forward", _fastest(results, "forward", "flex"), ">", 3),
        ("FlexAttention ÷ ours, with backward", _fastest(results, "training", "flex"), ">", 5),
        ("exact ÷ separable", separable and 1 / separable, ">", 3),
        ("memory at 2T ÷ T, forward", _growth(results, "forward"), "<", 2.1),
        ("memory at 2T ÷ T, with backward", _growth(results, "training"), "<", 2.1),
    ]
    return [judged(*target) for target in found]
