"""The examples in README.md, in docs/ and in docstrings are tests."""

from doctest import ELLIPSIS, NORMALIZE_WHITESPACE

import pytest
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.integration.pytest import SybilItem
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown import PythonCodeBlockParser

_doctest = DocTestParser(optionflags=ELLIPSIS | NORMALIZE_WHITESPACE)
_pages = Sybil(parsers=[PythonCodeBlockParser()], patterns=["README.md", "docs/*.md"])
_docstrings = Sybil(
    parsers=[_doctest],
    patterns=["src/anyscore/*.py", "src/anyscore/*/*.py"],
    document_types={".py": PythonDocStringDocument},
)

pytest_collect_file = (_pages + _docstrings).pytest()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the examples of a file on one of xdist's workers: each builds on those before it."""
    for item in items:
        if isinstance(item, SybilItem):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
