"""Setup of the tests of JAX, which run in processes of their own; see norecursedirs."""

from __future__ import annotations

import os

from helpers.sooner import SOONER

os.environ.update(SOONER)  # test_table.py undoes these flags
os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=4"

import jax

from helpers import one_context

one_context.install()
jax.config.update("jax_enable_x64", True)
