"""Benchmarks of anyscore beside other libraries, and of builds of its core: `python -m benchmarks`.

`command.py` has the options, `run.py` measures, `bars.py` and `gpu_limits.py` hold figures against
promises. `stages.py`, `stages_models.py` and `stages_gpu.py` say which comparisons there
are; `rivals.py` says who takes part, and `variants_*.py` how each is set up. `work.py` and
`tasks.py` have inputs and right answers; `graphs.py`, `packed.py` and `speech.py` have work of
their own kind, with those that do it. On a GPU contestants live in processes, `hosts.py` and
`worker.py`; `private.py` has the private names of kernels that are looked at. `tables.py`,
`display.py` and `plot.py` show results. `builds.py` compares builds of the core. All that
`anyscore bench` has, too, is in `anyscore.lab.bench`.
"""
