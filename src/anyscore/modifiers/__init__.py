"""Biases, sinks, normalizers and dropout: they enter between scores and output.

    biases, edge_biases    objects and tensors that are added to scores, lowered for one call
    sinks                  one more logit without a value
    normalizers            functions from scores to weights: the softmax, and three others
    dropout                the dropout mask, from a counter: the same in every framework

Imports `ops` and `masks`. Start with `normalizers`.
"""
