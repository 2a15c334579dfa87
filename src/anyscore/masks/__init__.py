"""Masks: the objects that users make, and what each is lowered to for one call.

    objects             `Lengths`, `Interval`, `Window`, `Causal`, `Keys`, boolean arrays, and `&`
    edges, sequences    the edges of a graph; packed sequences
    alignment           where queries stand among keys: `align` and `offset`
    context             the call that a mask is lowered for: sizes, positions, packed ones too
    offsets             integers of masks, checked where their values are known
    lowered             bounds of keys for each query, and the rows that nobody attends
    lowered_edges       edges sorted by query and by key; sums over them

Imports `ops` alone. Start with `objects`.
"""
