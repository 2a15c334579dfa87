"""The kernels for GPUs in PyTorch, written in Triton; `attention` is the entry.

`call` makes operands and panels, and `scorers` has the ways to score a tile. `formula` prints
pairs, and `graphs` launches the kernels of edges. `targets` has the facts in which GPUs differ.
The other files are Triton code: pairs, panels, scores, outer functions, slopes, the forward, a
decoder's step, the backward, edges. `untried` has kernels that no GPU has run.
"""
