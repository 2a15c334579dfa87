"""Attention of speech: layers that attend step by step, with the weights of earlier steps.

    stepwise, state                              the base: `start`, `step`, and the state between
    scored_stepwise                              the base of layers with energies of any score
    location, location_energies                  location-sensitive attention
    forward_attention, forward_recurrence        weights that move by one key at most
    monotonic, monotonic_recurrence, chunks      monotonic attention, hard and soft, and in chunks
    weighted_sum                                 the output of one step; gradients added in place

Imports `torch.attention` and `torch.layer`. Start with `stepwise`.
"""
