"""The reference: attention by its definition, in operations that all frameworks have.

definition    the formulas
run           a task by these formulas
edges         the same over the edges of a graph
"""
