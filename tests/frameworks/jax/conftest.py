"""What the tests of JAX share. They run in processes of their own, see norecursedirs."""

from __future__ import annotations

import os

from helpers.sooner import SOONER

os.environ.update(SOONER)  # not where the table asks otherwise
os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=4"

import jax

from helpers import one_context

one_context.install()
jax.config.update("jax_enable_x64", True)
