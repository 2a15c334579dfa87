"""JAX: the core as targets of XLA and the Pallas kernels, with derivatives of any order.

backend     `BACKEND`: what the core and the Pallas kernels run
autograd    derivatives of the core, and batches
sparse      sparsemax and entmax15
buffers     buffers of growing caches
"""
