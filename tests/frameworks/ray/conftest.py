"""What the tests of Ray share. They run in processes of their own, see norecursedirs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

LABORATORY = str(Path(__file__).parents[2] / "lab")  # made trials, the command line
sys.path.append(LABORATORY)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), LABORATORY)))
