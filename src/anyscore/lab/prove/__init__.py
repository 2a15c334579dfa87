"""Published findings on attention scores, tried on this machine.

    proof        says what a proof consists of: a claim, trials, checks
    names        finds proofs by the names that users type
    lookup, collinear_keys, kernel_regression, length, width
                 hold a proof each; `learn` trains the small ones, `pinyin` has phrases for `width`
    judge_claims says by intervals whether a claim stands
    runner       trains the parts, as comparisons, and writes the record

`anyscore.lab.report.proofs` writes the page and `anyscore.lab.terminal` the lines. Start with
`proof`.
"""
