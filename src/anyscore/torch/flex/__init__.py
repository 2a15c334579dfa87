"""PyTorch's FlexAttention, with any score, trained on a CPU.

trace        a mod as a tree of recorded operations, and its numbers for all positions
outer        a function of the score alone, as a formula
score_mod    a tree as a scale, biases, an outer function and masks, or the reason why it is none
masks        a condition, or a `BlockMask`, as an interval of keys for each query, or booleans
attention    `flex_attention`

Imports `functional` and the layers below. Start with `attention`.
"""
