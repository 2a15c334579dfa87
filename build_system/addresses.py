"""Write the address of the repository into README.md and pyproject.toml, for a source archive.

    python build_system/addresses.py https://github.com/OWNER/NAME v1.0.0

A checkout does not know its own address. A package index shows README.md alone, where a link to a
file of the repository leads nowhere; and it lists `[project.urls]`. The workflow of a release knows
the address and the tag, and runs this file in its own checkout.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\]\([^)]*\))*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")
"""A link or a picture of Markdown whose target is a file of the repository; a link may hold one."""
TABLE = "[project.optional-dependencies]\n"


def absolute(readme: str, repository: str, tag: str) -> str:
    """Return README.md's text with the addresses of a tag in place of relative links.

    A link shows a file (`blob`); a picture is the file itself (`raw`).
    """

    def address(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        kind = "raw" if picture else "blob"
        return f"{picture}[{LINK.sub(address, text)}]({repository}/{kind}/{tag}/{target})"

    return LINK.sub(address, readme)


def with_urls(project: str, repository: str, tag: str) -> str:
    """Return pyproject.toml's text with the table `[project.urls]`."""
    owner, name = urlsplit(repository).path.strip("/").split("/")
    urls = {
        "Documentation": f"https://{owner.lower()}.github.io/{name}/",
        "Source": repository,
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    lines = [f'{label} = "{url}"\n' for label, url in urls.items()]
    return project.replace(TABLE, "".join(["[project.urls]\n", *lines, "\n", TABLE]), 1)


def main(arguments: list[str]) -> int:
    """Rewrite both files of the current folder."""
    match arguments:
        case [repository, tag] if re.fullmatch(r"https://[\w.-]+/[\w.-]+/[\w.-]+", repository):
            pass
        case _:
            sys.exit(__doc__)
    readme, project = Path("README.md"), Path("pyproject.toml")
    if "[project.urls]" in project.read_text(encoding="utf-8"):
        sys.exit("pyproject.toml has [project.urls]: the addresses are written already")
    for path, change in (readme, absolute), (project, with_urls):
        path.write_text(change(path.read_text(encoding="utf-8"), repository, tag), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
