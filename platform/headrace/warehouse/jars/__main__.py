"""`python -m headrace.warehouse.jars [SET …]`: fetches missing Java artifacts, by default a site's.

With `--pin POM` it writes the SHA-256 of each jar that the pom brings into the file beside it.
"""

import sys
from pathlib import Path

from headrace.warehouse.jars import DEFAULT_SETS, JarsError, ensure_jars, pin


def main(argv: list[str]) -> int:
    """Fetches the sets; returns the exit code."""
    try:
        if argv[:1] == ["--pin"]:
            for pom_file in argv[1:]:
                print(pin(Path(pom_file)))
        else:
            ensure_jars(tuple(argv) or DEFAULT_SETS)
    except JarsError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
