"""What the tests of JAX share. They run in processes of their own, see norecursedirs."""

from __future__ import annotations

import sys
from pathlib import Path

import jax

sys.path.append(str(Path(__file__).parents[2]))  # the oracle and the tables

jax.config.update("jax_enable_x64", True)
