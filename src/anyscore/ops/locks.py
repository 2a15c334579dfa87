"""Locks that are free in children of `os.fork`."""

from __future__ import annotations

import os
import threading


class Lock:
    """A lock for `with`. A child lacks the thread that held the lock, and must not wait for it.

    The guarded state must be valid wherever that thread stopped, or be rebuilt.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):  # Windows has no fork
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
