"""What the tests of JAX share. They run in processes of their own, see norecursedirs."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=4 "
    "--xla_cpu_use_fusion_emitters=false "  # compiles two to four times sooner without them
    "--xla_cpu_parallel_codegen_split_count=1"
)

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # sooner too; not in the table
