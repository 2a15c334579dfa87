"""JAX: the core as targets of XLA and the Pallas kernels, with derivatives of any order.

backend     `BACKEND`: what is fused
autograd    derivatives of the core, and batches
pallas      the kernels for GPUs
sparse      sparsemax and entmax15
buffers     buffers of growing caches
"""
