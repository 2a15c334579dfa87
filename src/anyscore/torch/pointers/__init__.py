"""Pointer networks, whose output are the weights of attention.

    pointer            the layer, and the sequences that it chooses
    pointer_energy     the attention whose logarithms of weights it gives

Imports `torch.attention` and `torch.layer`. Start with `pointer`.
"""
