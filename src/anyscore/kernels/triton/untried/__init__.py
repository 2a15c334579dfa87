"""Kernels that no GPU has run: `anyscore.kernels.tried` keeps them from impl="auto".

separable                   tanh as products of rows: `tables` has its functions, `rows` chooses and
                            writes rows, `nested` and `nested_backward` multiply them
minima                      the forward of leaky_relu and |a − b| in 16 bits: `minima_rows`, and
                            `minima_forward` in Gluon
comparisons                 the sums of their backward: `step_sums` in Gluon

README.md says what was counted and emulated, and which command decides on a GPU. Ways of a few
lines stand in the exact kernels: `pairs.UNTRIED` switches them on.
"""
