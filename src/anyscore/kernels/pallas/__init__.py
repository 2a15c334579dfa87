"""The kernels for NVIDIA GPUs in JAX, written in Pallas; `attention` is the entry."""
