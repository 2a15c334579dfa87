"""`anyscore bench` measures how fast this machine computes each score, beside plain PyTorch.

`formulas.py` has the scores in plain PyTorch, `work.py` the inputs of a measurement and its right
answer in float64, `check.py` the comparison with that answer. `rivals.py` describes rivals,
`variants.py` has the calls of anyscore and of PyTorch. `runner.py` prepares and times calls,
`weigh.py` measures their memory, `timing.py` and `memory.py` read clocks and the machine's memory.
`comparison.py` times calls in turns; `run.py` does all of it for `anyscore.lab.cli.bench`,
`terminal.py` and `report.py` show it. The repository's folder `benchmarks/` builds on this package.
"""
