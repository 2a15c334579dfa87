"""The kernels for GPUs in PyTorch, written in Triton; `attention` is the entry.

`call` makes operands and panels, and `scorers` has the ways to score a tile. `formula` prints
pairs, and `graphs` launches the kernels of edges. `targets` has the facts in which GPUs differ.
`separable` launches kernels for tanh as products: `tables` has its functions, `rows` chooses and
writes rows, `nested` and `nested_backward` multiply them. `minima` launches the forward of
leaky_relu and |a − b| in 16 bits: `minima_rows`, and `minima_forward` in Gluon. `comparisons`
launches the sums of their backward: `step_sums`, in Gluon. The other files are Triton code: pairs,
panels, scores, outer functions, slopes, the forward, a decoder's step, the backward, edges.
"""
