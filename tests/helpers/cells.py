"""A pytest plugin writes the cells that a run covers, to compare a shorter run with a longer one.

A cell is (score, mask, dtype, framework, implementation, gradient) of one call of `attention`, or
of a layer. Each distinct cell is a line of JSON:

    PYTHONPATH=tests CELLS=after pytest -p helpers.cells tests/contract     (adds to after/*.jsonl)
    python tests/helpers/cells.py before after     (singles and pairs; fails if one is lost)
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from itertools import combinations
from pathlib import Path
from typing import Any

AXES = ("score", "mask", "dtype", "framework", "implementation", "gradient")
Cell = tuple[str, ...]
SEEN: Counter[Cell] = Counter()


def kind_of(x: Any) -> str:
    """Return the class of an object and the ranks of its tensors: Additive(W_q 2, W_k 2, w_v 1)."""
    if x is None:
        return "none"
    if is_dataclass(x):
        parts = (field_of(f.name, getattr(x, f.name)) for f in fields(x))
        return f"{type(x).__name__}({', '.join(filter(None, parts))})"
    if hasattr(x, "shape"):
        return f"array {len(x.shape)}"
    if isinstance(x, (int, float)):
        return "number"
    return "list" if isinstance(x, (list, tuple)) else "callable" if callable(x) else "other"


def field_of(name: str, x: Any) -> str:
    if x is None:
        return ""
    if isinstance(x, (list, tuple)) and x and is_dataclass(x[0]):
        return " & ".join(sorted(map(kind_of, x)))
    if hasattr(x, "shape"):
        return f"{name} {len(x.shape)}"
    return kind_of(x) if is_dataclass(x) else f"{name}={x}" if isinstance(x, str) else name


def watch(attention: Any) -> None:
    """Note each later call before it runs, and its chosen implementation."""
    from anyscore import backends
    from anyscore.ops import framework

    attend, choose = attention.attend, attention._choose
    signature = inspect.signature(attend)
    chosen: list[str] = []

    @wraps(choose)
    def noted_choice(*args: Any, **options: Any) -> Any:
        found = choose(*args, **options)
        chosen.append(found[0].route)
        return found

    @wraps(attend)
    def noted(*args: Any, **options: Any) -> Any:
        chosen.clear()
        result = attend(*args, **options)
        given = signature.bind(*args, **options)
        call, how = given.arguments.values()
        query, key, value, score, mask, lengths, *_ = call
        name = framework(query) or "none"
        try:
            gradient = bool(backends.load(name).differentiable((query, key, value)))
        except Exception:
            gradient = False
        masks = [kind_of(mask)] + ([f"lengths {kind_of(lengths)}"] if lengths is not None else [])
        dtype = str(getattr(query.dtype, "name", query.dtype)).split(".")[-1].strip("'<>")
        impl = f"{how.impl}: {chosen[-1] if chosen else '?'}"
        SEEN[kind_of(score), " & ".join(masks), dtype, name, impl, str(gradient)] += 1
        return result

    attention.attend, attention._choose = noted, noted_choice


def pytest_configure() -> None:
    from anyscore.functional import attention

    watch(attention)


def pytest_sessionfinish() -> None:
    if SEEN and "CELLS" in os.environ:
        folder = Path(os.environ["CELLS"])
        folder.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps([*cell, count]) for cell, count in sorted(SEEN.items()))
        (folder / f"{os.getpid()}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(folder: Path) -> Counter[Cell]:
    found: Counter[Cell] = Counter()
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            *cell, count = json.loads(line)
            found[tuple(cell)] += count
    return found


def projections(cells: Counter[Cell], size: int) -> Iterator[tuple[tuple[int, ...], set[Cell]]]:
    """Yield each choice of `size` axes, with the combinations of their values."""
    for axes in combinations(range(len(AXES)), size):
        yield axes, {tuple(cell[axis] for axis in axes) for cell in cells}


def main(before: str, after: str) -> int:
    """Print the numbers of values and pairs in both runs; return 1 if one is lost."""
    old, new = read(Path(before)), read(Path(after))
    print(f"calls {old.total():,} → {new.total():,}; cells {len(old):,} → {len(new):,}")
    lost = 0
    for size in (1, 2):
        for (axes, had), (_, has) in zip(
            projections(old, size), projections(new, size), strict=True
        ):
            missing = sorted(had - has)
            lost += len(missing)
            print(" × ".join(AXES[axis] for axis in axes), f"{len(had):,} → {len(has):,}", end="")
            print(f", lost {len(missing)}: {missing[:5]}" if missing else "")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
