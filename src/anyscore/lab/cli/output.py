"""The output of commands: JSON, remarks, and errors as one line on stderr with an exit status."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer

from anyscore.lab.console import PlainConsole
from anyscore.lab.data.opening import readable_name
from anyscore.lab.errors import InputError, RunFailure
from anyscore.lab.phrases import steers

_PLAINER = "anyscore.plainer"  # the error handler for characters that a terminal cannot show
_ALIKE = {
    "→": "->",
    "•": "-",
    "·": ".",
    "−": "-",
    "‖": "|",
    "…": "...",
    "⇥": "|",
    "×": "x",
    "░": ".",
    "▒": ":",
    "▓": "#",
    "█": "@",
    "←": "<-",
    "␣": "_",
    "⏎": "$",
}


def _plainer(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a terminal does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ALIKE.get(character, "?") for character in missing), error.end


codecs.register_error(_PLAINER, _plainer)


def use_plain_characters() -> None:
    """Let streams replace characters that they cannot show: a terminal without "→" is no error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_PLAINER)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Run a command: its errors are one line each; SIGTERM and SIGHUP end it as Ctrl-C does."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            with suppress(ValueError):  # not in the main thread
                signal.signal(getattr(signal, name), _as_ctrl_c)
    try:
        yield
        sys.stdout.flush()
    except InputError as error:
        complain(str(error))
        raise typer.Exit(2) from None
    except RunFailure as error:
        complain(str(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        complain("stopped; finished trials are kept")
        raise typer.Exit(130) from None
    except MemoryError:
        complain("there is not enough memory; give less data with --limit, or fewer --jobs")
        raise typer.Exit(1) from None
    except OSError as error:
        complain(f"the output cannot be written ({error.strerror or error})")
        close_stdout()
        raise typer.Exit(1) from None


def _as_ctrl_c(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def close_stdout() -> None:
    """Close standard output, so that Python reports the failed write only once."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def print_json(record: Any, *, indent: int | None = 1) -> None:
    """Print plain data as JSON on standard output, and escape characters that steer a terminal."""
    text = json.dumps(record, ensure_ascii=False, indent=indent)
    print(re.sub(r"[^\n -~]", _harmless, text))


def _harmless(match: re.Match[str]) -> str:
    """Return a character of a JSON text, escaped if it could steer a terminal."""
    return json.dumps(match[0])[1:-1] if steers(match[0]) else match[0]


def typed_command(program: str = "anyscore") -> str:
    """Return the command line as a user can type it again."""
    return readable_name(f"{program} {shlex.join(sys.argv[1:])}")


def complain(text: str) -> None:
    """Print an error in one line on standard error."""
    _say(text, "bold red")


def remark(text: str) -> None:
    """Print a remark in one line on standard error."""
    _say(text, "dim")


def _say(text: str, style: str) -> None:
    line = " ".join(text.splitlines())
    with suppress(OSError):
        PlainConsole(stderr=True).print(
            f"anyscore: {line}", style=style, highlight=False, soft_wrap=True
        )
