"""Examples in README.md, CONTRIBUTING.md, docs/ and docstrings as tests; shares of all tests."""

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
        help="run a sample: as --daily, and no test marked slow",
    )
    parser.addoption(
        "--daily",
        action="store_true",
        help="run no test marked weekly, and one score of each pair in place of all scores",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = {"weekly"} if config.getoption("daily") else set()
    left_out = {"weekly", "slow"} if config.getoption("sample") else left_out
    if left_out:
        chosen, others = [], []
        for item in items:
            (chosen if _is_in_share(item, left_out) else others).append(item)
        items[:] = chosen
        config.hook.pytest_deselected(items=others)


@cache
def _stood_for() -> tuple[str, ...]:
    """Name the scores, as their variants begin, that a share of the tests leaves out."""
    from helpers.table_scores import PAIRS, TABLE

    return tuple(name.replace("_", "") for name in TABLE if name not in PAIRS)


def _is_in_share(item: pytest.Item, left_out: set[str]) -> bool:
    if any(item.get_closest_marker(name) for name in left_out):
        return False
    if item.get_closest_marker("every_score") or not hasattr(item, "callspec"):
        return True
    given = (item.callspec.params.get(name) for name in ("name", "score", "row"))
    scores = (x[0] if isinstance(x, tuple) and x else x for x in given)  # row: score, shape, mask
    names = [x.lower().replace("_", "") for x in scores if isinstance(x, str)]
    return not any(name.startswith(_stood_for()) for name in names)
