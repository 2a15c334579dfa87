"""The kernels of NVIDIA GPUs for JAX, in Pallas: `attention` is what is called."""
