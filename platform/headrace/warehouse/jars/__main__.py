"""`python -m headrace.warehouse.jars [SET …]`: fetches missing Java artifacts, by default a site's."""

import sys

from headrace.warehouse.jars import DEFAULT_SETS, JarsError, ensure_jars


def main(argv: list[str]) -> int:
    """Fetches the sets; returns the exit code."""
    try:
        ensure_jars(tuple(argv) or DEFAULT_SETS)
    except JarsError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
