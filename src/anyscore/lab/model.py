"""The encoder-decoder that every score is tried in."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from anyscore import PreparedKeys
from anyscore.layers import find_score, has_hidden
from anyscore.torch import Attention


class Translator(nn.Module):
    """A small sequence-to-sequence model with one attention layer.

        keys    = W_e [forward GRU; backward GRU](source)        (B, T_k, hidden)
        queries = GRU(target so far), from a state of zeros
        logits  = W_o dropout(tanh(W_c [Attention(queries, keys); queries]))

    What the decoder knows of the source comes through the attention alone, so that a comparison of
    scores compares them. The attention stands after the decoder's GRU, so in training all steps
    attend at once, and in decoding one at a time. Queries and keys have one width, so that every
    score fits.

    All parameters but the attention's own start the same for the same `seed`, whatever the score:
    they are drawn first, from a generator of their own.

    Args:
        score: a name that `anyscore.torch.Attention` knows.
        source_size, target_size: sizes of the vocabularies; token 0 is padding.
        hidden: width of embeddings, states, queries and keys.
        dropout: of the embeddings and of the last layer's input, in training only.
        seed: of the initial parameters.
    """

    def __init__(
        self,
        score: str,
        *,
        source_size: int,
        target_size: int,
        hidden: int,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.score = score
        half = (hidden + 1) // 2
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.source_embedding = nn.Embedding(source_size, hidden, padding_idx=0)
            self.target_embedding = nn.Embedding(target_size, hidden, padding_idx=0)
            self.encoder = nn.GRU(hidden, half, batch_first=True, bidirectional=True)
            self.to_keys = nn.Linear(2 * half, hidden)
            self.decoder = nn.GRU(hidden, hidden, batch_first=True)
            self.combine = nn.Linear(2 * hidden, hidden)
            self.to_logits = nn.Linear(hidden, target_size)
            self.dropout = nn.Dropout(dropout)
            # Last: what a score draws must not move what all scores share.
            width = hidden if has_hidden(find_score(score)) else None
            self.attention = Attention(score, hidden=width, d_q=hidden, d_k=hidden)

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that every score has: all but the attention layer's."""
        return {
            name: parameter
            for name, parameter in self.named_parameters()
            if not name.startswith("attention.")
        }

    def encode(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Source tokens (B, T_k) and their lengths (B,) -> keys (B, T_k, hidden).

        The sequences are packed, so that the backward GRU begins at each one's own last token and
        never sees padding.
        """
        embedded = self.dropout(self.source_embedding(source))
        packed = pack_padded_sequence(
            embedded, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        packed_states, _ = self.encoder(packed)
        states, _ = pad_packed_sequence(
            packed_states, batch_first=True, total_length=source.shape[1]
        )
        keys: Tensor = self.to_keys(states)
        return keys

    def decode(
        self,
        target: Tensor,
        state: Tensor | None,
        keys: Tensor | PreparedKeys,
        lengths: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Target tokens so far (B, T_q) -> logits of each next token (B, T_q, V), the new state.

        `state` (1, B, hidden) is that after the tokens before them, None at the beginning. `keys`:
        what `encode` gave, prepared by the attention where there are many calls.
        """
        embedded = self.dropout(self.target_embedding(target))
        queries, state = self.decoder(embedded, state)
        assert state is not None
        context = self.attention(queries, keys, valid_lens=lengths)
        combined = torch.tanh(self.combine(torch.cat([context, queries], dim=-1)))
        return self.to_logits(self.dropout(combined)), state

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Teacher forcing: logits (B, T_q, V) of the token that follows each one of `target`.

        Args:
            source: tokens (B, T_k), padded on the right.
            lengths: (B,), each at least 1.
            target: tokens (B, T_q) that begin with the start token.
        """
        keys = self.encode(source, lengths)
        logits, _ = self.decode(target, None, keys, lengths.to(keys.device))
        return logits

    @torch.no_grad()
    def greedy(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        start: int,
        end: int,
        limit: int,
        return_weights: bool = False,
    ) -> tuple[list[list[int]], list[Tensor]]:
        """The likeliest next token again and again, up to `end` or `limit` tokens.

        Returns:
            For each source its output tokens, with `end` as the last one unless the limit came
            first; and, when asked, its attention weights (T_q, T_k) on the CPU, a row per token.
        """
        keys = self.attention.prepare_keys(self.encode(source, lengths))
        state: Tensor | None = None
        lengths = lengths.to(source.device)
        token = torch.full((source.shape[0], 1), start, device=source.device)
        done = torch.zeros(source.shape[0], dtype=torch.bool, device=source.device)
        tokens: list[Tensor] = []
        rows: list[Tensor] = []
        for _ in range(limit):
            logits, state = self.decode(token, state, keys, lengths)
            logits[..., [0, start]] = -torch.inf  # neither is ever said
            token = logits.argmax(-1)
            tokens.append(token)
            if return_weights:
                weights = self.attention.attention_weights
                assert weights is not None  # the layer was just called
                rows.append(weights.cpu())
            done |= token.squeeze(1) == end
            if done.all():
                break
        outputs = []
        for row in torch.cat(tokens, dim=1).tolist():
            outputs.append(row[: row.index(end) + 1] if end in row else row)
        if not return_weights:
            return outputs, []
        maps = torch.cat(rows, dim=1)
        return outputs, [
            maps[i, : len(output), :length]
            for i, (output, length) in enumerate(zip(outputs, lengths.tolist(), strict=True))
        ]
