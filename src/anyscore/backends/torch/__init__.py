"""PyTorch: the core and the Triton kernels as operators with derivatives.

backend                     `BACKEND`: the tasks of each fused implementation, SDPA's too
core, autograd, operators   a task as a call, its derivatives, the registered operators
triton                      the operators on GPUs
modes                       PyTorch's modes: compiling, transforming, recording
repeated                    calls that repeat an earlier one
sharded, exchange           attention over the processes of a group; the exchange between them
nested, sparse, buffers     nested tensors; sparsemax and entmax15; buffers of caches
energies, flops             energies of location-sensitive attention; counts of operations
"""
