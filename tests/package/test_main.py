"""The command `anyscore` without the laboratory installed."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.sample


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["typer", "torch", "rich"])
def test_what_to_install_is_said_in_one_line(missing: str) -> None:
    code = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "sys.argv = ['anyscore', 'compare']\n"
        "from anyscore.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "pip install 'anyscore[lab]'" in done.stderr
    assert missing in done.stderr
    assert done.stderr.count("\n") == 1
