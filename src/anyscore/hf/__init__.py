"""Models of the Hugging Face library transformers: their attention, and any score in its place.

import anyscore.hf

anyscore.hf.register()
model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="anyscore")
anyscore.hf.use(model, score="additive", layers=[0, 1])    # w·tanh(q + k) in two layers
model.save_pretrained(folder)
model = anyscore.hf.load(AutoModelForCausalLM, folder)
"""

from anyscore.hf.attention import register
from anyscore.hf.exchange import use
from anyscore.hf.layers import attention_layers
from anyscore.hf.loading import load

__all__ = ["attention_layers", "load", "register", "use"]
