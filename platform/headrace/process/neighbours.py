"""The other pages of a host: written by its agent, read by every unit that has a page itself.

Owns the file's form. A unit finds it by an environment variable, so that a new unit changes no other one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from headrace.process.page import Neighbour

FILE_VARIABLE: Final = "HEADRACE_PAGES"
"""The path of the file."""
UNIT_VARIABLE: Final = "HEADRACE_UNIT"
"""The name of the unit that a process is."""
FILE_MAX_BYTES: Final = 64 << 10


class PageAddress(NamedTuple):
    """The page of one unit."""

    unit: str
    datacenter: str
    url: str


def file_text(pages: Iterable[PageAddress]) -> str:
    """The file with these pages."""
    return json.dumps([page._asdict() for page in pages], indent=1)


def neighbours(environment: Mapping[str, str] = os.environ) -> list[Neighbour]:
    """The pages of this process's host; none if no agent has started it, or if the file cannot be read."""
    path, here = environment.get(FILE_VARIABLE), environment.get(UNIT_VARIABLE)
    if not path:
        return []
    try:
        with Path(path).open("rb") as file:
            rows = [PageAddress(**row) for row in json.loads(file.read(FILE_MAX_BYTES))]
    except (OSError, ValueError, TypeError):
        return []
    return [
        Neighbour(row.datacenter, row.unit.removeprefix(f"{row.datacenter}-"), row.url, row.unit == here)
        for row in rows
        if all(isinstance(value, str) for value in row)
    ]
