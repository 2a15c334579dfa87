"""Records on disk: plain data as JSON, of a format that this version reads or refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from anyscore.lab.errors import InputError
from anyscore.lab.run_folder import part_of

FORMAT = 2


def check_same(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise InputError that names the settings in which two records differ."""
    before, now = _flat(old.get("shared")), _flat(new["shared"])
    names = [n for n in dict.fromkeys([*before, *now]) if before.get(n) != now.get(n)]
    if names:
        changes = "; ".join(
            f"{n} was {_short(before.get(n))}, is {_short(now.get(n))}" for n in names
        )
        raise InputError(
            f"{folder}: this comparison was begun with other settings ({changes}); give the same, "
            "or another folder with --out"
        )


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested dicts to one: {"a": {"b": 1}} → {"a.b": 1}."""
    if not isinstance(value, dict):
        return {name: value}
    parts = [_flat(part, f"{name}.{key}" if name else str(key)) for key, part in value.items()]
    return {key: part for part in parts for key, part in part.items()}


def _short(x: Any) -> str:
    text = "not given" if x is None else str(x)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_record(folder: Path, *names: str) -> dict[str, Any]:
    """Read a file of JSON that this package wrote into a run folder.

    Args:
        names: of the file in the folder; see `part_of`.

    Raises:
        InputError: the file is missing or damaged, a link, or written by a newer version.
    """
    path = part_of(folder, *names)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no whole JSON"
        raise InputError(f"{path}: cannot be read ({reason}); remove its folder") from None
    if not isinstance(record, dict):
        raise InputError(f"{path}: damaged; remove its folder, and it is made again")
    version = record.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise InputError(
            f"{path}: of format {version!r}; this anyscore reads up to {FORMAT}: update"
        )
    return record


def finite(value: Any) -> Any:
    """Return plain data with None in place of NaN and infinities."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
