"""The source archive builds from itself alone, and wheels name the code of others."""

from __future__ import annotations

import email
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from helpers import machine
from helpers.by_pair import also_weekly
from package.wheels import PIP, ROOT, SMOKE, backend, installed, run, sources, wheel_of

pytestmark = machine.needs_core

SDIST = """
import sys
import anyscore_build
print(anyscore_build.build_sdist(sys.argv[1]))
"""


REPOSITORY, TAG = "https://github.com/Some-body/anyscore", "v1.2.3"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source archive of the checkout, as a release makes it."""
    folder = tmp_path_factory.mktemp("archive")
    chosen = ["--python-version", "3.13", "--abi", "cp313", "--only-binary", ":all:"]
    run(*PIP, "download", "--no-deps", *chosen, "--dest", folder, f"jaxlib=={backend().JAXLIB}")
    (jaxlib,) = folder.glob("jaxlib-*.whl")
    with zipfile.ZipFile(jaxlib) as packed:
        names = [x for x in packed.namelist() if "/include/" in x or x == "jaxlib/__init__.py"]
        packed.extractall(folder, names)
    path = os.pathsep.join([str(folder), str(ROOT / "build_system")])
    source = sources(folder / "anyscore")
    run(sys.executable, ROOT / "build_system" / "addresses.py", REPOSITORY, TAG, folder=source)
    run(sys.executable, "-c", SDIST, folder, folder=source, env={**os.environ, "PYTHONPATH": path})
    (made,) = folder.glob("anyscore-*.tar.gz")
    return made


def test_the_archive_has_all_sources_and_the_headers_of_others(archive: Path) -> None:
    with tarfile.open(archive) as opened:
        packed = {path.name.partition("/")[2]: path for path in opened.getmembers()}
        headers = {
            name: opened.extractfile(packed[f"third_party/xla/ffi/api/{name}"])
            for name in backend().SHA256
        }
        digests = {
            name: hashlib.sha256(file.read()).hexdigest() for name, file in headers.items() if file
        }
    needed = ["pyproject.toml", "README.md", "LICENSE", "THIRD_PARTY.md", "third_party/xla/LICENSE"]
    needed += ["CMakeLists.txt", "constraints-build.txt", "build_system/anyscore_build.py"]
    needed += [str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.*")]
    assert packed.keys() >= {*needed}
    assert not [path for path in packed if path.endswith(".so") or path.startswith("build/")]
    assert digests == backend().SHA256


def test_a_package_index_has_addresses(archive: Path) -> None:
    """Its page has README.md alone: no link there is relative, and each names a file of the tag."""
    with tarfile.open(archive) as opened:
        (path,) = (x for x in opened.getnames() if re.fullmatch(r"[^/]+/PKG-INFO", x))
        file = opened.extractfile(path)
        assert file
        said = email.message_from_bytes(file.read())
    urls = dict(x.split(", ") for x in said.get_all("Project-URL", []))
    assert urls["Source"] == REPOSITORY
    assert urls["Documentation"] == "https://some-body.github.io/anyscore/"
    links = re.findall(r"\]\(([^)\s]+)\)", said.get_payload())
    ours = [x.partition("#")[0] for x in links if x.startswith(REPOSITORY)]
    assert [x for x in links if "://" not in x] == []
    for picture in ("report", "play"):  # the second is inside a link
        assert f"{REPOSITORY}/raw/{TAG}/docs/{picture}.png" in ours
    assert f"{REPOSITORY}/blob/{TAG}/CONTRIBUTING.md" in ours
    files = [x.removeprefix(f"{REPOSITORY}/").split("/", 2) for x in ours]
    assert [x for kind, tag, x in files if tag != TAG or not (ROOT / x).is_file()] == []
    assert {Path(x).suffix for kind, _, x in files if kind == "raw"} <= {".png", ".svg"}


@pytest.mark.parametrize("arguments", [[], [REPOSITORY], ["github.com/a/b", TAG], ["../b", TAG]])
def test_addresses_that_are_none_change_nothing(tmp_path: Path, arguments: list[str]) -> None:
    script = ROOT / "build_system" / "addresses.py"
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run([sys.executable, script, *arguments], cwd=tmp_path, capture_output=True)
    assert done.returncode == 1
    assert b"addresses.py https://github.com/OWNER/NAME" in done.stderr
    for name in ("README.md", "pyproject.toml"):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()


def test_the_archive_asks_for_no_jaxlib(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build from a checkout asks for jaxlib, one from the archive does not."""
    shutil.unpack_archive(archive, tmp_path)
    monkeypatch.chdir(sources(tmp_path / "checkout"))
    assert [x for x in backend().get_requires_for_build_wheel() if x.startswith("jaxlib")]
    (unpacked,) = tmp_path.glob("anyscore-*")
    monkeypatch.chdir(unpacked)
    assert not [x for x in backend().get_requires_for_build_wheel() if x.startswith("jaxlib")]


def test_no_archive_is_made_with_other_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sources(tmp_path / "checkout"))
    monkeypatch.setitem(sys.modules, "jaxlib", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"headers of jaxlib .*: make sdist"):
        backend().build_sdist(str(tmp_path))


def without_a_network() -> tuple[str, ...]:
    """Return a command that runs another one without a network; empty where it may not."""
    command = ("unshare", "--net", "--map-root-user")
    if (
        shutil.which("unshare")
        and not subprocess.run([*command, "true"], capture_output=True).returncode
    ):
        return command
    return ()


@pytest.fixture(scope="module")
def wheel(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel that is built from the archive alone, without optimization."""
    plain = "-Ccmake.define.ANYSCORE_ISAS=baseline", "-Ccmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0"
    folder = tmp_path_factory.mktemp("wheel")
    options = *plain, "-Cbuild.verbose=true"
    made, said = wheel_of(archive, folder, *options, before=without_a_network())
    assert re.search(r"-isystem \S+/third_party ", said), "the headers are those of the archive"
    return made


@pytest.mark.parametrize("packages", [("numpy", "jax"), *also_weekly(("numpy",))])
def test_a_wheel_is_built_from_the_archive_alone(
    wheel: Path, tmp_path: Path, packages: tuple[str, ...]
) -> None:
    """It computes right where there is no compiler, also for JAX."""
    if "jax" in packages:
        packages += "jaxlib", "scipy", "ml_dtypes", "opt_einsum"
    python = installed(wheel, tmp_path / "environment", *packages)
    said = run(python, SMOKE, "core", env={"PATH": ""})
    assert ("JAX: fused" in said) == ("jax" in packages), said


def test_a_wheel_has_the_parts_of_pages(wheel: Path) -> None:
    kinds = {".js", ".css", ".html", ".j2"}
    parts = [path for path in (ROOT / "src/anyscore").rglob("*") if path.suffix in kinds]
    assert {"play.js", "theme.css", "explorer.html", "play.html.j2"} <= {x.name for x in parts}
    with zipfile.ZipFile(wheel) as opened:
        assert {str(path.relative_to(ROOT / "src")) for path in parts} <= {*opened.namelist()}


def test_a_wheel_has_the_notices_of_others(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (notices,) = (x for x in names if x.endswith(".dist-info/licenses/THIRD_PARTY.md"))
        text = opened.read(notices).decode()
    assert [x for x in names if x.endswith(".dist-info/licenses/LICENSE")]
    assert [x for x in names if x.endswith((".so", ".dylib"))] == [
        x for x in names if "/_core." in x
    ]
    assert [x for x in names if "third_party" in x] == []
    (licence,) = (x for x in metadata.files("nanobind") or () if x.name == "LICENSE")
    assert licence.read_text().strip() in text
    nanobind = Path(machine.package("nanobind").__file__).parent
    header = nanobind / "ext/robin_map/include/tsl/robin_map.h"
    lines = header.read_text(encoding="utf-8").partition("*/")[0].splitlines()[1:-1]
    assert "\n".join(line.removeprefix(" *").removeprefix(" ") for line in lines).strip() in text
