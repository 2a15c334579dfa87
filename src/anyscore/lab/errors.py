"""Errors shown in one line are a user's mistakes, and failures of a run or of a trial."""

from __future__ import annotations


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
