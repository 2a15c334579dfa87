"""Biases, sinks, normalizers and dropout: they enter between scores and output.

    biases, edge_biases    objects and tensors that are added to scores, lowered for one call
    sinks                  one more logit without a value
    normalizers            what makes weights of scores: the softmax, and three others
    dropout                which weights are kept, by a counter: the same in every framework

Imports `ops` and `masks`. Start with `normalizers`.
"""
