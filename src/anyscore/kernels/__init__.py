"""Raw kernels: they compute, and know neither autograd nor the reference."""
