"""Models of the Hugging Face library transformers: their attention, and any score in its place.

import anyscore.hf

anyscore.hf.register()
model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="anyscore")
anyscore.hf.use(model, score="additive", layers=[0, 1])    # w·tanh(q + k) in two layers
model.save_pretrained(folder)
model = anyscore.hf.load(AutoModelForCausalLM, folder)

The files: `attention` and `masks` (`interval_mask`: a mask whose numbers are made when they are
read); `layers` finds a model's layers, `exchange` puts another score into them, `record` keeps
that in the config, and `loading` reads it.
"""

from anyscore.hf.attention import register
from anyscore.hf.exchange import use
from anyscore.hf.layers import attention_layers
from anyscore.hf.loading import load

__all__ = ["attention_layers", "load", "register", "use"]
