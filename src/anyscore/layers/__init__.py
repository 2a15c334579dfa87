"""The parts that layers of all frameworks share.

    attention                  parts of `Attention` of several frameworks
    course                     the classes of *Dive into Deep Learning*
    texts                      texts of arguments in docstrings
    parameters                 the parameters of a layer's score, and their initial values
    score_spec                 the score of a layer, from its arguments
    heads                      tensors split into heads, and options of heads
    state_dicts                names of parameters in state dicts of other libraries
    last_weights               the last call of a layer, and weights of chosen queries and heads
    select                     layers of a model, chosen by name

Imports `functional` and the layers below. Start with `parameters`.
"""
