"""The kernels of NVIDIA GPUs for PyTorch, in Triton: `attention` is the way in.

`call` makes operands and panels, `scorers` chooses how a tile is scored, `formula` prints pairs,
`graphs` launches the kernels of edges. The other files are Triton: pairs, panels, scores,
outer functions, slopes, the forward, a decoder's step, the backward, edges.
"""
