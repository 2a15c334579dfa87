"""The sentences of docs/parity.md."""

from __future__ import annotations

TITLE, BEYOND = "# The parity table", "## The worst beyond the textbook call"
INTRODUCTION = """\
# The parity table

Every score × mask × implementation, values and gradients, held against an oracle in float64: of \
every dtype in NumPy, PyTorch, TensorFlow and MXNet, and of a sample of the rows in JAX. \
Kernels of the CPU are measured, those of GPUs are not. This page is generated; do not edit it. \
A score or a mask that is newer than the page is not in it: `make age` names it.

A **cell** is one call of `attention`. Its output, weights and log-sum-exp are compared with the \
papers' formulas, computed by loops over single numbers in float64 from the same inputs, rounded \
to the cell's dtype as they are; and the gradients of query, key, value and every parameter, of \
a random functional of output and log-sum-exp, with those of float64 automatic differentiation, \
one query at a time over the keys that it attends. NumPy has no gradients.

**What a mask lets nobody attend is NaN**: keys, values, and the queries that attend nothing, \
wherever there are any (marked NaN). Where it leaves queries without keys (marked ∅), output, \
weights and gradients must be 0 exactly and the log-sum-exp −∞.

The **unit** is the dtype's eps (the distance from 1 to the next number) times the largest entry \
of the exact result: 0.5 is one rounding of it. Shown is the largest error of any entry, `values/\
gradients`, each the worst of its results. Where the sum that makes a gradient cancels, it is \
small against its terms, and the multiple is large.

Rows **beyond the textbook call** add one thing to it, for a product, a sum and a distance:

|name|what is added|
|---|---|
|weights|gradients through the weights that `return_weights=True` gives, besides output and \
log-sum-exp|
|scores, log_weights|these functions instead of `attention`: the matrix and its gradients|
|sink|a tensor of one number for each head|
|capped_bias, capped_bias_after|a tensor inside and after `softcap=2.5`|
|bias, bias_after|the same inside and after the distance's own outer function, a root|
|relative, t5, alibi|`Relative` of clipped distances, of T5's buckets, and `ALiBi`, as \
`bias_after=`|
|sigmoid, sparsemax, entmax15|these normalizers; gradients are those of the output|
|edges|nothing: the mask is given as the edges of a graph, in any order|

Tensors that are added have gradients too: those of sinks, biases, tables and slopes. A bias is \
NaN where nobody attends, and its gradient 0 exactly; scores and logarithms of weights are −∞ \
there. Scores are the oracle's; what is made of them is computed in float64 from the definitions, \
the sparse normalizers by sorting. Gradients of sparsemax jump where a score meets its threshold: \
its sum is one that half precision rounds no part of, and in its rows no score is so near that \
roundings of float32 could carry it across.

The **budget** starts from that of the tests (`tests/helpers/budget.py`): twice the error of the \
same formula in PyTorch's plain operations in the same dtype (for all frameworks), plus a band of \
16 units, and for gradients the roundings of their terms: four for each term. (Beyond the textbook \
these are the terms of the gradient of each logit, times the slope of a cap or a root, summed as \
the tensor is spread.) It differs in two places. In half precision the band is 4 \
units. And gradients of values are also allowed the rounding of the log-sum-exp, from which the \
[backward](kernel.md) makes the weights again. Zeros, NaN, infinities, \
shapes and dtypes must be as they should. **✗** marks a cell outside its budget, – one that is \
refused with a reason.
"""

AGAIN = """\
## How to make it anew

`make parity` measures every cell, and goes on where it was stopped: about an hour on two \
cores (`make -j2 parity`), most of it JAX's. `make clean` lets it begin anew. Each framework runs \
in a process of its own; MXNet in an environment of its own.
"""
