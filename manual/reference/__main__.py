"""`python -m reference FOLDER`: writes what `make docs` builds, and the man pages, into an own folder."""

from __future__ import annotations

import sys
from pathlib import Path

from reference.pages import PagesError, write


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m reference FOLDER", file=sys.stderr)
        return 2
    try:
        count = write(Path(arguments[0]))
    except PagesError as error:
        print(f"the pages cannot be written: {error}", file=sys.stderr)
        return 1
    print(f"{count} pages in {arguments[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
