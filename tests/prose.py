"""Report sentences and paragraphs that readers must decode; exit with 1 if there is one.

    .venv/bin/python tests/prose.py README.md docs/*.md src/anyscore/score/*.py

Read are paragraphs and list items of Markdown, and docstrings and help texts of Python. Code,
tables and doctests are left out. Code or a formula in a sentence counts as one word.

A sentence, up to its stop or colon, has at most 25 words. No "what", "those", "who" or "that" is
its subject. Words with a private meaning are in `PRIVATE`. A paragraph of a page has at most 700
characters.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

WORDS, CHARACTERS = 25, 700
SUBJECT = re.compile(
    r"(?:^|[;:,] |\b(?:and|or|if|than|but) )(?:what(?:ever)?|those|who(?:ever)?)\b", re.I
)
PRIVATE = re.compile(
    r"\b(?:comes?|coming|came) again\b|\bin parts\b|\bours\b|\b(?:is|are|was|were) (?:told|said)\b"
    r"|\bof its own accord\b|\bthe bars?\b"
)
END = re.compile(r"(?<=[.!?:])[”\")]?\s+(?=[“(\"]?(?:[A-Z]|code\b|anyscore\b))|(?<=:)\s+")
SHORT = re.compile(r"\b(?:e\.g|i\.e|vs|cf|al|approx)\.\s")
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$", re.DOTALL)
FIELD = re.compile(r"\n(?= *(?:[A-Z][a-z]+:\n|\**[\w, ]+(?: \([^)]*\))?: ))")


def of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, paragraph) of a page, with code and formulas as one word, without tables."""
    kind = ""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type != "inline":
            kind = token.type
        elif kind == "paragraph_open":
            words = (
                "code" if x.type == "code_inline" else "\n" if "break" in x.type else x.content
                for x in token.children or []
                if x.type in ("text", "code_inline", "softbreak", "hardbreak")
            )
            plain = FORMULA.sub("code", "".join(words))
            lines = plain.splitlines()  # a directive of the site is no sentence
            yield (token.map or [0])[0] + 1, "\n".join(x for x in lines if not x.startswith(":"))


def of_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, paragraph) of docstrings and help texts, without doctests and formulas."""
    for node in ast.walk(ast.parse(text)):
        texts = []
        if isinstance(body := getattr(node, "body", None), list) and body:
            texts = [body[0].value] if isinstance(body[0], ast.Expr) else []
        elif isinstance(node, ast.keyword) and node.arg == "help":
            texts = [node.value]
        for found in texts:
            if not (isinstance(found, ast.Constant) and isinstance(found.value, str)):
                continue
            for paragraph in re.split(r"\n[ \t]*\n", inspect.cleandoc(found.value)):
                is_table = re.search(r"\S {2,}\S", paragraph)
                if ">>>" in paragraph or paragraph.startswith("    ") or is_table:
                    continue
                for field in FIELD.split(paragraph):
                    yield found.lineno, re.sub(r"`[^`]*`", "code", field)


def faults(path: Path) -> Iterator[str]:
    """Yield a line for each fault of a file."""
    python = path.suffix == ".py"
    for line, paragraph in (of_python if python else of_markdown)(path.read_text(encoding="utf-8")):
        place = f"{path}:{line}"
        if len(paragraph) > CHARACTERS and not python:
            yield f"{place}: {len(paragraph)} characters in a paragraph, at most {CHARACTERS}"
        flat = SHORT.sub(lambda m: m[0].strip(), re.sub(r"\s+", " ", paragraph).strip())
        for sentence in END.split(flat):
            words = len(re.findall(r"[^\W\d_][\w'’-]*", sentence))
            if words > WORDS:
                yield f"{place}: {words} words, at most {WORDS}: {sentence}"
            if (found := SUBJECT.search(sentence)) and not sentence.rstrip("*_").endswith("?"):
                yield f"{place}: {found[0].strip(' ,;:')!r} as a noun: {sentence}"
            if found := PRIVATE.search(sentence):
                yield f"{place}: {found[0]!r} has a private meaning: {sentence}"


if __name__ == "__main__":
    all_faults = [fault for name in sys.argv[1:] for fault in faults(Path(name))]
    if all_faults:
        print(*all_faults, sep="\n")
    sys.exit(bool(all_faults))
