"""The examples in README.md, in docs/ and in docstrings are tests."""

from doctest import ELLIPSIS, NORMALIZE_WHITESPACE

from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown import PythonCodeBlockParser

_doctest = DocTestParser(optionflags=ELLIPSIS | NORMALIZE_WHITESPACE)
_pages = Sybil(parsers=[PythonCodeBlockParser()], patterns=["README.md", "docs/*.md"])
_docstrings = Sybil(
    parsers=[_doctest],
    patterns=["src/anyscore/*.py", "src/anyscore/*/*.py", "src/anyscore/torch/*/*.py"],
    document_types={".py": PythonDocStringDocument},
)

pytest_collect_file = (_pages + _docstrings).pytest()
