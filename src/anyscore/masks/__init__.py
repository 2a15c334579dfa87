"""Masks: the objects that users make, and the form that each is lowered to for one call.

    objects             `Lengths`, `Interval`, `Window`, `Causal`, `Keys`, boolean arrays, and `&`;
                        `lower` of each makes bounds of keys for each query
    edges, sequences    the edges of a graph; packed sequences
    alignment           positions of queries among keys: `align` and `offset`
    context             the call that a mask is lowered for: sizes, positions, packed ones too
    offsets             integers of masks, checked where their values are known
    lowered             bounds of keys for each query, and the rows that every mask excludes
    lowered_edges       edges sorted by query and by key; sums over them

Imports `ops` alone. Start with `objects`.
"""
