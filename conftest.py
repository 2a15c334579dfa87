"""Examples in README.md, CONTRIBUTING.md, docs/ and docstrings as tests."""

from __future__ import annotations

from doctest import ELLIPSIS, NORMALIZE_WHITESPACE

from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown import PythonCodeBlockParser

_doctest = DocTestParser(optionflags=ELLIPSIS | NORMALIZE_WHITESPACE)
_pages = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "CONTRIBUTING.md", "docs/*.md", "docs/reference/*.md"],
)
_docstrings = Sybil(
    parsers=[_doctest],
    patterns=["src/anyscore" + "/*" * depth + ".py" for depth in (1, 2, 3, 4)],
    document_types={".py": PythonDocStringDocument},
)

pytest_collect_file = (_pages + _docstrings).pytest()
