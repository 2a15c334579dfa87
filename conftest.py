"""Examples in README.md, CONTRIBUTING.md, docs/ and docstrings as tests; a sample of all tests."""

from __future__ import annotations

from doctest import ELLIPSIS, NORMALIZE_WHITESPACE
from functools import cache

import pytest
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        action="store_true",
        help="run a sample: no test marked slow, and one score of each pair in place of all scores",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("sample"):
        return
    sampled, left_out = [], []
    for item in items:
        (sampled if _is_sampled(item) else left_out).append(item)
    items[:] = sampled
    config.hook.pytest_deselected(items=left_out)


@cache
def _stood_for() -> tuple[str, ...]:
    """Name the scores, as their variants begin, that a sample leaves out."""
    from helpers.table_scores import PAIRS, TABLE

    return tuple(name.replace("_", "") for name in TABLE if name not in PAIRS)


def _is_sampled(item: pytest.Item) -> bool:
    if item.get_closest_marker("slow"):
        return False
    if item.get_closest_marker("every_score") or not hasattr(item, "callspec"):
        return True
    given = (item.callspec.params.get(name) for name in ("name", "score", "row"))
    scores = (x[0] if isinstance(x, tuple) and x else x for x in given)  # row: score, shape, mask
    names = [x.lower().replace("_", "") for x in scores if isinstance(x, str)]
    return not any(name.startswith(_stood_for()) for name in names)
