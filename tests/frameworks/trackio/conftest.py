"""Trackio's place for these tests, told before it is imported; see norecursedirs."""

from __future__ import annotations

import os
import tempfile

os.environ["TRACKIO_DIR"] = os.path.join(tempfile.mkdtemp(), "trackio-test")
