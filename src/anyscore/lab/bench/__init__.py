"""`anyscore bench` measures how fast this machine computes each score, beside plain PyTorch.

`formulas.py` has the scores in plain PyTorch, `work.py` the inputs of a measurement and its right
answer in float64. `rivals.py` describes rivals, `variants.py` has the calls of anyscore and of
PyTorch, and `graphs.py` those over the edges of a graph. `runner.py` prepares, checks and times
calls, `timing.py` has clocks, turns and the deadline, and `weigh.py` measures memory.
`comparison.py` times calls in turns; `run.py` does all of it for `anyscore.lab.cli.bench`,
`terminal.py` and `report.py` show it. The repository's folder `benchmarks/` builds on this package.
"""
