"""Benchmarks of anyscore beside other libraries, and of builds of its core: `python -m benchmarks`.

`command.py` has the options, `run.py` measures, `bars.py` and `gpu_limits.py` hold figures against
promises. `gpu_rates.py` measures the rates of a GPU's units by the kernels of `rate_kernels.py`.
`stages.py`, `stages_models.py` and `stages_gpu.py` list the comparisons. `rivals.py` lists the
rivals, and `variants_*.py` set each up. `work.py` and `tasks.py` have inputs and right answers.
`graphs.py`, `packed.py` and `speech.py` have special work with its rivals. On a GPU `hosts.py` and
`worker.py` keep contestants in processes. `private.py` has the private names of inspected kernels.
`tables.py`, `display.py` and `plot.py` show results; `record.py` writes those of record to
`measurements/`, from which pages are made. `builds.py` compares builds of the core,
`small_layers.py` small layers of PyTorch with plain modules. `options.py` measures pairs from
formulas, biases and other options, `ranks.py` calls across ranks, `flex.py` mods of FlexAttention.
Each is a command of its own.
Code shared with `anyscore bench` is in `anyscore.lab.bench`.
"""
