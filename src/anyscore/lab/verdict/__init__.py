"""The verdict of a comparison.

    statistics     differences over seeds and items, their intervals and p-values
    judge          the verdict on all pairs, as plain data
    text           the verdict in sentences
    convergence    signs in the curves of trials that training went wrong

Start with `statistics`; docs/verdict.md derives it.
"""
