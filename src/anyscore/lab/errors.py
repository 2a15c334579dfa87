"""Errors shown in one line are a user's mistakes, and failures of a run or of a trial."""

from __future__ import annotations

from collections.abc import Iterable

from anyscore.ops.checks import brief, suggest


class InputError(Exception):
    """An input of the user cannot be used; the text is one line for the user.

    The text names the expected input, the actual input and a way out. The command line prints the
    text and exits with status 2, without a traceback.
    """


class TrialFailure(Exception):
    """A trial cannot go on; the text has the reason in one line. Other trials go on."""


class RunFailure(Exception):
    """Something outside the user's input went wrong; the text is one line for the user.

    The command line exits with status 1.
    """


def check_name(option: str, name: str, known: Iterable[str], meant: str | None = None) -> None:
    """Raise InputError if a name is unknown; suggest the known name nearest to it, or to `meant`.

    Args:
        option: the option or field with the name, for the message.
    """
    names = list(known)
    if name not in names:
        message = f"{option}: expected one of {', '.join(names)}, got {brief(name)}"
        raise InputError(f"{message}; {suggest(meant or name, names)}".rstrip("; "))
