"""Homes that a whole site cannot live in, named before anything is started.

Owns which characters break which program. headrace's own processes take any path; HAProxy's configuration,
Hadoop's URIs, Java's class paths and Spark's scripts and lists do not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from headrace.agent.home import check_restored
from headrace.site.errors import SiteError
from headrace.site.site import Site

FORBIDDEN: Final = {" ": "a space", "\t": "a tab", ",": "a comma", ":": "a colon"}


def check_paths(site: Site, environment: Path = Path(sys.prefix)) -> None:
    """Raises `SiteError` if the home, or the virtual environment that runs this, has such a path, or the
    home is half restored.
    """
    check_restored(site.home)
    check_home_path(site.home)
    _check(
        "headrace's environment",
        environment.absolute(),
        "move the checkout to a folder without it, and run `make setup` there",
    )


def check_home_path(
    home: Path, way_out: str = "set HEADRACE_HOME to a folder without it, and repeat"
) -> None:
    """Raises `SiteError` if the home has such a path."""
    _check("the home", home, way_out)


def _check(what: str, path: Path, way_out: str) -> None:
    for character, name in FORBIDDEN.items():
        if character in str(path):
            raise SiteError(
                f"{what}, {str(path)!r}, has {name} in its path, with which HDFS, Spark and HAProxy do "
                f"not work: {way_out}"
            )
