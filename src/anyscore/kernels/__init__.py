"""Raw kernels: these packages compute, and import neither autograd nor the reference.

    cpu           the C++ core on arrays of any framework
    own_formulas/ formulas for the core: printed as C++, compiled, cached, loaded
    xla/          the core as calls of XLA, batched by vmap and spread over devices
    triton/       the kernels for GPUs on PyTorch tensors
    pallas/       the kernels for NVIDIA GPUs on JAX arrays
    tried         which of these have run on which GPUs, and the switch for the others

Imports `ops`, `score`, `masks`, `modifiers` and `call`. Start with `cpu`.
"""
