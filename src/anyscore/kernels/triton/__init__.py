"""The kernels of NVIDIA GPUs for PyTorch, in Triton: `attention` is what is called."""
