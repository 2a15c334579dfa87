"""Setup of the tests of Triton, which run in processes of their own, see norecursedirs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # the oracle and the tables
