"""JAX: the core as targets of XLA and the Pallas kernels, with derivatives of any order.

backend     `BACKEND`: the tasks of the core and of the Pallas kernels
autograd    derivatives of the core, and batches
sparse      sparsemax and entmax15
buffers     buffers of growing caches
exchange    the exchange of arrays along an axis of a mesh
sharded     attention over the ranks of that axis
"""
