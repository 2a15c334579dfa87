"""Pointer networks: their output is the weights of attention.

    pointer            the layer, and the sequences of keys that it chooses
    pointer_energy     attention that returns the logarithms of its weights

Imports `torch.attention` and `torch.layer`. Start with `pointer`.
"""
