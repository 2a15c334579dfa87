"""The reference: attention as it is defined, in the operations that all frameworks have.

definition    the formulas
run           a task by them, head by head
edges         the same over the edges of a graph
"""
