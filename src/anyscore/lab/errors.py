"""Errors that are told in one line: what a user can mend, and what a trial can fail of."""

from __future__ import annotations


class InputError(Exception):
    """Something given by the user cannot be used; the text is the one line they are shown.

    It says what was expected, what came and what to do. The command line prints it and exits
    with status 2; it never becomes a traceback.
    """


class TrialFailure(Exception):
    """A trial cannot go on; the text says why in one line. Others do."""


class RunFailure(Exception):
    """Something outside the user's input went wrong; the text is the one line they are shown.

    The command line exits with status 1.
    """
