"""Python processes of the laboratory's own: no module of the current folder runs in them."""

from __future__ import annotations

import os
import sys


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls `main()` of a module; `sys.argv` has the arguments from 1 on.

    `python -m` would look for modules in the current folder first, which may be a download.
    """
    program = f"import sys; sys.path[:] = filter(None, sys.path); from {module} import main; main()"
    return [sys.executable, "-W", "ignore", "-c", program, *arguments]


def keep_current_folder_out() -> None:
    """Let the processes that libraries begin do without modules of the current folder.

    Python 3.10 does not heed this.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
