"""Records on disk are plain data as JSON, in a numbered format."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyscore.lab.errors import InputError
from anyscore.lab.forms import Form
from anyscore.lab.run_folder import file_in, write_whole
from anyscore.ops.checks import brief

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


def read_record(
    form: Form, folder: Path, *names: str, advice: str, oldest: int = 1
) -> dict[str, Any]:
    """Read a file of JSON that this package wrote.

    Args:
        form: of the record.
        names: of the file in the folder; see `file_in`.
        advice: a way out for a damaged file, for the message.
        oldest: the format of the oldest files that can be read.

    Raises:
        InputError: the file is missing, damaged or no file, or of another format.
    """
    path = file_in(folder, *names)
    try:
        # Python may have written NaN and infinities, for which JSON has no numbers.
        record = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no whole JSON"
        raise InputError(f"{path}: cannot be read ({reason}); {advice}") from None
    version = record.get("format", FORMAT) if isinstance(record, dict) else FORMAT
    if isinstance(version, int) and not oldest <= version <= FORMAT:
        raise InputError(
            f"{path}: expected format {FORMAT}, found {brief(version)}; use the release of "
            f"anyscore that wrote it ({brief(record.get('anyscore'))})"
        )
    try:
        form(record, path.stem)
    except ValueError as error:
        raise InputError(f"{path}: damaged ({error}); {advice}") from None
    return dict(record)


def write_record(path: Path, record: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Write plain data as a file of JSON, with null in place of NaN and infinities.

    Raises:
        RunFailure: the disk is full or the file cannot be written.
    """
    write_whole(path, as_json(record, indent=indent))


def as_json(record: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Return plain data as JSON, with null in place of NaN and infinities."""
    text = json.dumps(finite(dict(record)), ensure_ascii=False, indent=indent, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")  # halves of pairs too, escaped as JSON has them


def finite(value: Any) -> Any:
    """Return plain data with None in place of NaN and infinities."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
