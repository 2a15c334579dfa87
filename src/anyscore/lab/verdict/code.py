"""The lines that put a score into a reader's own model."""

from __future__ import annotations

from anyscore.layers import SCORES, has_hidden


def code(score: str | None) -> str | None:
    """A layer of PyTorch with that score, and a call; None if it is none of ours."""
    if score not in SCORES:
        return None
    hidden = ", hidden=128" if has_hidden(SCORES[score]) else ""
    return f"""\
import torch
from anyscore.torch import Attention

attention = Attention("{score}"{hidden}, d_q=128, d_k=128)

query, key, value = torch.randn(4, 10, 128), torch.randn(4, 50, 128), torch.randn(4, 50, 128)
lengths = torch.tensor([50, 20, 7, 50])  # keys that each query may attend to
output = attention(query, key, value, valid_lens=lengths)  # (4, 10, 128)
"""
