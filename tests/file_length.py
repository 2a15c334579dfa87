"""Fail if a source file is longer than the house allows: 300 lines, 400 for kernels."""

import sys
from pathlib import Path


def limit(path: Path) -> int:
    return 400 if path.parts[0] == "csrc" or "kernels" in path.parts else 300


def main(names: list[str]) -> int:
    code = {".py", ".h", ".cpp"}
    long = [
        f"{path}: {lines} lines, limit {limit(path)}: split it by idea"
        for path in map(Path, names)
        if path.suffix in code and (lines := len(path.read_text().splitlines())) > limit(path)
    ]
    print("\n".join(long), end="\n" if long else "")
    return bool(long)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
