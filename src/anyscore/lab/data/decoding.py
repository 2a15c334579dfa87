"""Bytes are decoded as UTF-8; the error for other encodings says how to convert the file."""

from __future__ import annotations

import codecs
import shlex
from pathlib import PurePath

# Each by the name that iconv knows and by Python's. UTF-32 first: its mark begins like UTF-16's.
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_ENCODINGS = (
    ("CP932", "cp932"),  # Shift-JIS with its extensions
    ("EUC-JP", "euc_jp"),
    ("GB18030", "gb18030"),
    ("BIG5", "big5"),
    ("EUC-KR", "euc_kr"),
    ("WINDOWS-1252", "cp1252"),
    ("WINDOWS-1250", "cp1250"),
    ("WINDOWS-1251", "cp1251"),
    ("KOI8-R", "koi8_r"),
)
_AROUND = 12  # characters shown on either side of the wrong one


class NotText(Exception):
    """The bytes are not UTF-8 text; the message names the problem and a way out."""


def decode(raw: bytes, name: str, *, first: bool = False, packed: bool = False) -> str:
    """Decode a line of the file called `name`, without a byte order mark.

    Args:
        first: whether the line is the first one.
        packed: whether the file is packed, so that its bytes must be unpacked to be converted.

    Raises:
        NotText: the bytes are not UTF-8, or hold a NUL character.
    """
    if first:
        for mark, encoding in _MARKS:
            if raw.startswith(mark):
                raise NotText(f"expected UTF-8, found {encoding}; {_save(encoding, name, packed)}")
    raw = raw.removeprefix(codecs.BOM_UTF8)  # a file that was put after another has one as well
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"found the byte 0x{raw[error.start]:02x} at position {error.start + 1}"
        raise NotText(
            f"expected UTF-8, {byte}; {_advice(raw, error.start, name, packed)}"
        ) from None
    if "\0" in text:
        position = text.index("\0") + 1
        if len(raw) > 3 and 0.25 * len(raw) <= raw.count(0) < 0.8 * len(raw):
            raise NotText(
                "expected UTF-8, found what looks like UTF-16 or UTF-32 without its mark (a NUL "
                f"character at position {position}); save the file as UTF-8 text"
            )
        raise NotText(
            f"expected text, found a NUL character at position {position}; remove it, or save the "
            "file as UTF-8 text"
        )
    return text


def _advice(raw: bytes, wrong: int, name: str, packed: bool) -> str:
    """Show the wrong place in each encoding that fits: the user knows which is right."""
    readings: dict[str, str] = {}
    for iconv_name, python_name in _ENCODINGS:
        try:
            text = raw.decode(python_name)
        except UnicodeDecodeError:
            continue
        place = len(raw[:wrong].decode(python_name, "ignore"))
        reading = " ".join(text[max(0, place - _AROUND) : place + _AROUND].split())
        if reading.isprintable() and reading not in readings.values():
            readings[iconv_name] = reading
    if not readings:
        return (
            "no usual encoding fits, so it may not be text; see what the command file says of it, "
            "or save it as UTF-8 in the program that made it"
        )
    shown = ", ".join(f'"{text}" in {encoding}' for encoding, text in list(readings.items())[:4])
    encoding = next(iter(readings)) if len(readings) == 1 else "NAME"
    return f"it would read {shown}; if one is right, {_save(encoding, name, packed)}"


def _save(encoding: str, name: str, packed: bool) -> str:
    """Say how to save the file as UTF-8."""
    if packed:
        return f"unpack the file and save it as UTF-8 (iconv -f {encoding} -t UTF-8)"
    if name == "standard input":
        return f"convert it first: iconv -f {encoding} -t UTF-8"
    suffix = PurePath(name).suffix or ".txt"
    return (
        f"save it as UTF-8, for example: iconv -f {encoding} -t UTF-8 {shlex.quote(name)} "
        f"> utf8{suffix}"
    )
