"""The one kind of error that a user of the laboratory causes and can mend."""

from __future__ import annotations


class InputError(Exception):
    """Something given by the user cannot be used; the text is the one line they are shown.

    It says what was expected, what came and what to do. The command line prints it and exits
    with status 2; it never becomes a traceback.
    """
