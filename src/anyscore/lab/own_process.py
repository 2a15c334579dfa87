"""Python processes are started so that they import no module of the current folder."""

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
    """Keep the current folder out of the module path of libraries' processes.

    Python 3.10 ignores the variable.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
