"""Attention with any score in models of the Hugging Face library transformers.

In a model of transformers any score takes the place of the dot product:

    anyscore.hf.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="anyscore")

    anyscore.hf.use(model, score="additive", layers=[0, 1])    # w·tanh(q + k) in two layers
    model.save_pretrained(folder)
    model = anyscore.hf.load(AutoModelForCausalLM, folder)

The files of this package:

    attention            `register`: the attention function of transformers
    masks                the mask function of transformers
    interval_mask        a mask stored as intervals; its numbers are computed when read
    layers               the attention layers of a model, and their sizes
    exchange             `use`: another score in attention layers
    record               exchanged scores in the config of a model
    loading              `load`: a model with the scores of its config
"""

from anyscore.hf.attention import register
from anyscore.hf.exchange import use
from anyscore.hf.layers import attention_layers
from anyscore.hf.loading import load

__all__ = ["attention_layers", "load", "register", "use"]
