"""The functions that users call: each checks, lowers, chooses an implementation and runs it.

    attention       `attention` and `plan`
    scores          `scores`, `log_weights`, `log_sum_exp`
    from_scores     normalizers that no kernel has, of scores that a kernel makes
    separable       additive scores as one product of longer rows
    cache/          `prepare_keys`, `make_cache` and `Cache`

Imports all below: `backends`, `kernels`, `call` and what these import. Start with `attention`.
"""
