"""The functions that users call: each checks, lowers, chooses an implementation and runs it.

    attention       `attention` and `plan`
    scores          `scores`, `log_weights`, `log_sum_exp`
    from_scores     normalizers without a kernel, over scores from a kernel
    separable       additive scores as one product of longer rows
    cache/          `prepare_keys`, `make_cache` and `Cache`

Imports `backends` and the layers below. Start with `attention`.
"""
