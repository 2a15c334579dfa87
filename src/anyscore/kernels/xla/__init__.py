"""The C++ core for JAX, as calls of XLA; `attention` is the entry."""
