"""A model answers many sources, in their order; remarks on them are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from anyscore.lab.data.encoding import Item
from anyscore.lab.data.tokens import EOS, SPECIALS, normalise
from anyscore.lab.errors import InputError, RunFailure, TrialFailure
from anyscore.lab.phrases import counted
from anyscore.lab.train.answering import Answer, answers
from anyscore.lab.train.checkpoint import Run
from anyscore.lab.train.training import reported_failures

_TOGETHER = 256  # sources
_MOST = 10_000  # tokens of a source


@dataclass(frozen=True)
class Translation:
    """A source and the answer to it.

    Attributes:
        source: its text, in the normal form that the model was trained on.
        tokens: of the source.
        answer: None if the source is empty.
        text: of the answer.
    """

    source: str
    tokens: tuple[str, ...]
    answer: Answer | None
    text: str

    @property
    def output(self) -> list[str]:
        """The tokens of the answer, "</s>" among them if it ended by itself."""
        if self.answer is None:
            return []
        return [*self.answer.tokens, *([SPECIALS[EOS]] if self.answer.complete else [])]

    @property
    def rows(self) -> list[list[float]]:
        """The weights, a row for each token of the output; none if they were not asked for."""
        if self.answer is None or self.answer.weights is None:
            return []
        return [[round(w, 4) for w in row] for row in self.answer.weights.tolist()]

    def record(self, *, weights: bool) -> dict[str, Any]:
        """Return plain data, as `--json` prints it."""
        record: dict[str, Any] = {"source": self.source, "text": self.text}
        answer = self.answer
        record["tokens"] = [] if answer is None else list(answer.tokens)
        record["complete"] = answer is not None and answer.complete
        record["log_probability"] = None if answer is None else round(answer.log_probability, 6)
        if weights:
            record |= {"source_tokens": list(self.tokens), "weights": self.rows}
        return record


@dataclass
class Notes:
    """Remarks on the sources as a whole, complete once all are answered.

    Attributes:
        limit: the most tokens of an output.
        longest: tokens of the longest source in training; None if unknown.
        empty, strange, long: sources without text, with unknown tokens, and far too long.
        cut: outputs that reached the limit.
        unknown: the first unknown tokens.
    """

    limit: int
    longest: int | None
    empty: int = 0
    strange: int = 0
    long: int = 0
    cut: int = 0
    unknown: dict[str, None] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return a line for each note."""
        lines = []
        if self.empty:
            outputs = "its output is" if self.empty == 1 else "their outputs are"
            lines.append(f"{counted(self.empty, 'source')} without text: {outputs} empty")
        if self.strange:
            shown = ", ".join(list(self.unknown)[:8]) + (", …" if len(self.unknown) > 8 else "")
            lines.append(
                f"{counted(self.strange, 'source')} with tokens that the model does not know "
                f"({shown}); it treats all unknown tokens alike"
            )
        if self.long:
            lines.append(
                f"{counted(self.long, 'source')} more than twice as long as the longest training "
                f"source ({counted(self.longest or 0, 'token')}); do not rely on the outputs"
            )
        if self.cut:
            lines.append(
                f"{counted(self.cut, 'output')} cut at {counted(self.limit, 'token')}, the limit "
                "of an output; every training target was shorter"
            )
        return lines


def translate(
    run: Run, lines: Iterable[str], notes: Notes, *, beam: int = 1, return_weights: bool = False
) -> Iterator[Translation]:
    """Yield the translation of each line, in order; remarks go to `notes`.

    Raises:
        InputError: a source has more than 10,000 tokens.
        RunFailure: there is not enough memory.
    """
    numbered = enumerate(lines, 1)
    while part := list(islice(numbered, _TOGETHER)):
        items = [_item(run, number, line) for number, line in part]
        asked = [item for item in items if item.source]
        try:
            with reported_failures():
                answered = iter(
                    answers(run.model, run, asked, beam=beam, return_weights=return_weights)
                    if asked
                    else ()
                )
        except TrialFailure:
            raise RunFailure(
                "there is not enough memory; give shorter sources, or a smaller --beam"
            ) from None
        for item, (_, line) in zip(items, part, strict=True):
            answer = next(answered) if item.source else None
            _note(run, notes, item, answer)
            text = "" if answer is None else run.target_tokeniser.detokenise(answer.tokens)
            yield Translation(normalise(line), item.source, answer, text)


def _item(run: Run, number: int, line: str) -> Item:
    """Tokenise and number a source."""
    tokens = tuple(run.source_tokeniser.tokenise(line))
    if len(tokens) > _MOST:
        raise InputError(
            f"source {number}: expected at most {_MOST:,} tokens, got {len(tokens):,}; cut it into "
            "shorter ones"
        )
    return Item(tokens, tuple(run.source_vocabulary.encode(tokens)), (), ())


def _note(run: Run, notes: Notes, item: Item, answer: Answer | None) -> None:
    """Count sources without text, with unknown tokens or of excessive length, and cut outputs."""
    notes.empty += answer is None
    unknown = _unknown(run, item.source)
    notes.strange += bool(unknown)
    notes.unknown |= dict.fromkeys(unknown if len(notes.unknown) < 100 else ())
    notes.long += notes.longest is not None and len(item.source) > 2 * notes.longest
    notes.cut += answer is not None and not answer.complete and len(answer.tokens) == notes.limit


def _unknown(run: Run, tokens: Sequence[str]) -> list[str]:
    """Return the tokens that the model does not know."""
    return [token for token in tokens if token not in run.source_vocabulary]
