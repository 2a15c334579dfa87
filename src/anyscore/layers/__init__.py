"""The parts that layers of all frameworks share.

    attention                  parts of `Attention` of several frameworks
    course                     the classes of *Dive into Deep Learning*
    texts                      texts of arguments in docstrings
    parameters                 the parameters that a layer holds for a score, and their first values
    score_spec                 the score of a layer, from its arguments
    heads                      tensors split into heads, and options of heads
    state_dicts                parameters by the names that other libraries give them
    last_weights               the last call of a layer, and the weights of chosen queries and heads
    select                     layers of a model, chosen by name

Imports `functional` and what that imports. Start with `parameters`.
"""
