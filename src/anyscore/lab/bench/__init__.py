"""How fast this machine computes each score, beside plain PyTorch: `anyscore bench`.

`formulas.py` has the scores in plain PyTorch, `work.py` the inputs of a measurement and its right
answer in float64, `check.py` the comparison with that answer. `rivals.py` says how a call is
described, `variants.py` has those of anyscore and of PyTorch. `runner.py` prepares and times calls,
`weigh.py` measures their memory, `timing.py` and `memory.py` have the clocks and the machine's
memory. `comparison.py` times calls in turns; `run.py` does all of it for `anyscore.lab.cli.bench`,
and `report.py` writes it down. The folder `benchmarks/` of the repository is built on this package.
"""
