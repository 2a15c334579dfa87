"""The C++ core for JAX, as calls of XLA: `attention` is what is called."""
