"""The examples of docs/ print the text of their pages in each framework; a mistake is noticed.

pytest tests/docs/page_examples -k "not mxnet"      # and -k mxnet, in an environment with MXNet
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from page_examples import page

CHAPTER = Path(__file__).parents[3] / "docs" / "chapter.md"
OTHERS = CHAPTER.parent / "with_other_libraries.md"
CACHES = CHAPTER.parent / "caches.md"
GUIDES = "quickstart", "masks", "score_matrix"
OPTIONS = "sinks", "biases", "distances", "normalizers", "own_pair"
EACH = [CHAPTER.parent / f"{name}.md" for name in GUIDES + OPTIONS]
"""Pages whose examples every framework runs."""
QUIET = {
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_PLATFORMS": "cpu",
    "OMP_NUM_THREADS": "1",  # several threads wait for each other while other tests run
}


def run(path: Path, framework: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page in a process of its own, since frameworks disturb each other."""
    return subprocess.run(
        [sys.executable, page.__file__, str(path), framework],
        cwd=folder,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
    )


@dataclass
class Server:
    """Run pages for one framework, imported once: the import takes longer than most pages."""

    framework: str

    def __enter__(self) -> Server:
        self.process = subprocess.Popen(
            [sys.executable, page.__file__, "--serve", self.framework],
            env={**os.environ, **QUIET},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate()

    def run(self, path: Path, folder: Path) -> None:
        """Run a page in a process of its own. Raises AssertionError: the page failed."""
        inside = folder / "inside"
        inside.mkdir()
        asked = json.dumps([str(path), str(inside), str(folder / "written")])
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(asked, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer == "0\n", (folder / "written").read_text()


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as server:
        yield server


def by(*frameworks: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", frameworks, indirect=True)


@pytest.mark.parametrize("framework", page.FRAMEWORKS)
def test_chapter_prints_what_it_says(framework: str, tmp_path: Path) -> None:
    done = run(CHAPTER, framework, tmp_path)
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"!\[.*?\]\((.*?)\)", CHAPTER.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(x.name for x in tmp_path.iterdir())
    assert all((CHAPTER.parent / name).exists() for name in shown)


@by("pytorch", "jax", "tensorflow")
def test_other_libraries_do_what_the_page_says(server: Server, tmp_path: Path) -> None:
    server.run(OTHERS, tmp_path)


@by("pytorch", "jax")
def test_caches_do_what_the_page_says(server: Server, tmp_path: Path) -> None:
    server.run(CACHES, tmp_path)


@by("pytorch")
@pytest.mark.parametrize(
    "name", ["hugging_face.md", "torch_nn.md", "pictures.md", "questions.md", "install.md"]
)
def test_pages_of_pytorch_print_what_they_say(server: Server, name: str, tmp_path: Path) -> None:
    server.run(OTHERS.with_name(name), tmp_path)


@by("tensorflow")
def test_models_of_keras_do_what_the_page_says(server: Server, tmp_path: Path) -> None:
    server.run(OTHERS.with_name("keras_models.md"), tmp_path)


@pytest.mark.parametrize("path", EACH, ids=lambda path: path.stem)
@by(*page.FRAMEWORKS)
def test_pages_print_what_they_say(server: Server, path: Path, tmp_path: Path) -> None:
    server.run(path, tmp_path)


@pytest.mark.parametrize(
    ("server", "name"),
    [("jax", "jax"), ("tensorflow", "keras"), ("mxnet", "mxnet")],
    indirect=["server"],
)
def test_reference_prints_what_it_says(server: Server, name: str, tmp_path: Path) -> None:
    server.run(CHAPTER.parent / "reference" / f"{name}.md", tmp_path)


def test_chapter_has_every_example_in_every_framework() -> None:
    for example in page.read(CHAPTER.read_text(encoding="utf-8")):
        lines = [block.line for block in example.blocks.values()]
        assert list(example.blocks) in (["numpy"], list(page.FRAMEWORKS)), lines
        for mark, block in example.blocks.items():  # GitHub does not show the mark
            name = page.FRAMEWORKS.get(mark)
            assert name is None or block.source.startswith(f"# {name}\n"), block.line


GOOD = """\
A page.

```python numpy
x = 0.1 + 0.2
```

```python pytorch
print("both", [x, 3])
```

```python jax
print(f"both [{x}, {x * 10:.0f}]")
```

```text
both [0.30001,  3]
```
"""
WRONG = {
    "a number": ("0.30001", "0.3002", ":16:"),
    "a whole number": ("  3]", "  4]", ":16:"),
    "a word": ("both [0.", "each [0.", ":16:"),
    "a number too many": ("  3]", "  3, 3]", ":16:"),
    "nothing expected": ("```text\nboth [0.30001,  3]\n```\n", "", ":8:"),
    "an exception": ("x = 0.1", "\nx = y", '", line 5'),
}


def test_a_good_page_passes(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(GOOD)
    for framework in "pytorch", "jax":
        assert run(tmp_path / "page.md", framework, tmp_path).returncode == 0


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_page_fails_with_its_line(what: str, tmp_path: Path) -> None:
    old, new, line = WRONG[what]
    assert old in GOOD
    (tmp_path / "page.md").write_text(GOOD.replace(old, new))
    done = run(tmp_path / "page.md", "pytorch", tmp_path)
    assert done.returncode
    assert f"page.md{line}" in done.stderr


@by("pytorch")
def test_a_server_says_what_is_wrong_and_goes_on(server: Server, tmp_path: Path) -> None:
    wrong, good = tmp_path / "wrong", tmp_path / "good"
    for folder, text in (wrong, GOOD.replace("0.30001", "0.3002")), (good, GOOD):
        folder.mkdir()
        (folder / "page.md").write_text(text)
    with pytest.raises(
        AssertionError, match=r"page\.md:16: expected of the pytorch block of line 8"
    ):
        server.run(wrong / "page.md", wrong)
    server.run(good / "page.md", good)


@pytest.mark.parametrize(
    "block", ["```python\n```\n", "```python pytroch\n```\n", "```text\n```\n"]
)
def test_a_block_that_would_not_run_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        page.read(block)


def test_an_example_ends_where_a_framework_comes_again() -> None:
    again = GOOD + GOOD.replace("A page.", "").replace("```python numpy\nx = 0.1 + 0.2\n```\n", "")
    marks = [list(example.blocks) for example in page.read(again)]
    assert marks == [["numpy"], ["pytorch", "jax"], ["pytorch", "jax"]]
