"""What a unit's process needs of its machine: interpreters, jars, folders, versions of the software.

Owns `Host`, the facts that `kinds` needs of a machine, and how they are collected.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headrace.agent.airflow_environment import airflow_python, airflow_version, dags_folder
from headrace.postgresql.installation import installations

UNKNOWN_VERSION = "unknown"


@dataclass(frozen=True)
class Host:
    """One machine and one home. `versions` covers the kinds that run other software than headrace."""

    home: Path
    python: str
    java: str
    zookeeper_jars: Path | None
    airflow_python: Path
    dags: Path
    own_version: str = UNKNOWN_VERSION
    versions: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def here(home: Path) -> Host:
        """This machine, with `home` as the place for state, data and logs."""
        home = home.absolute()
        jars = zookeeper_jars(home)
        versions = {
            "zookeeper": _version_of_jar(jars, "zookeeper"),
            "hdfs": _version_of_jar(home / "jars" / "hdfs", "hadoop-hdfs"),
            "airflow": airflow_version() or UNKNOWN_VERSION,
            "postgresql": _postgresql_version(),
        }
        return Host(
            home, sys.executable, java(), jars, airflow_python(), dags_folder(), own_version(), versions
        )

    def version(self, kind: str) -> str:
        """The version of the software that units of this kind run."""
        return self.versions.get(kind, self.own_version)

    def log(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def secret(self, name: str) -> Path:
        """The file from which a unit reads a password, so that no command line shows it."""
        return self.home / "secrets" / name

    def data(self, name: str) -> Path:
        """Where a unit keeps its data unless its configuration names a folder."""
        return self.home / "data" / name


def own_version() -> str:
    """The version of headrace."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return UNKNOWN_VERSION


def _postgresql_version() -> str:
    """The major version that new data would be of."""
    found = installations(airflow_python().parents[1])
    return str(found[0].major) if found else UNKNOWN_VERSION


def _version_of_jar(folder: Path | None, name: str) -> str:
    if folder is not None:
        for path in folder.glob(f"{name}-[0-9]*.jar"):
            return path.stem.removeprefix(f"{name}-")
    return UNKNOWN_VERSION


def java() -> str:
    """The `java` to start: of `$JAVA_HOME` when set, else of the path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def zookeeper_jars(home: Path) -> Path | None:
    """A folder of jars that hold a whole ZooKeeper server: PySpark's own, else those that
    `python -m headrace.warehouse.jars zookeeper` fetched into this home, else None.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "jars"
    fetched = home / "jars" / "zookeeper"
    return fetched if fetched.is_dir() else None
