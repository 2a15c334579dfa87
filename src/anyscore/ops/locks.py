"""Locks that children of `os.fork` find free."""

from __future__ import annotations

import os
import threading


class Lock:
    """A lock for `with`. A child does not have the thread that held it, and must not wait for it.

    The guarded state must be right wherever that thread was, or be made anew.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):  # there are no forks on Windows
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
