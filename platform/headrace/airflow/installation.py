"""An installation's addresses: the fields in the extra of a connection of type `headrace`.

Owns the fields' names and checks. Pure; imports nothing of Airflow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FIELDS: Final[Mapping[str, str]] = {
    "bootstrap": "Brokers of the analysis cluster, HOST:PORT,…",
    "registry_url": "Schema registries, DATACENTER=http://HOST:PORT,…, those of source datacenters first",
    "hdfs_url": "HDFS for Spark, hdfs://HOST:PORT",
    "webhdfs_url": "WebHDFS for metadata, http://HOST:PORT",
    "audit_store": "Audit store, an SQLAlchemy URL",
    "python": "Absolute path of a Python with headrace[warehouse] and PySpark",
}
_URL_FIELDS: Final = {"registry_url": ("http", "https"), "hdfs_url": None, "webhdfs_url": ("http", "https")}
_DATACENTER: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*=")
_ADDRESSES: Final = re.compile(r"[^\s,:]+:\d{1,5}(,[^\s,:]+:\d{1,5})*")


def without_names(registry_url: str) -> str:
    """Returns the registries' URLs as any client knows them, without the datacenters' names."""
    return ",".join(_DATACENTER.sub("", url.strip()) for url in registry_url.split(","))


class ConnectionFieldError(ValueError):
    """A field of a connection of type headrace is missing or invalid."""


@dataclass(frozen=True, slots=True)
class Installation:
    """One headrace installation, as seen from Airflow. `python` is the interpreter that runs Spark."""

    bootstrap: str
    registry_url: str
    hdfs_url: str
    webhdfs_url: str
    audit_store: str
    python: Path
    zookeeper: str | None = None
    """The analysis cluster's ZooKeeper; a load needs it where two registries have two schemas of one id."""

    @property
    def spark_submit(self) -> Path:
        """PySpark's launcher, in the same directory as `python`."""
        return self.python.parent / "spark-submit"


def parse_installation(extra: Mapping[str, Any], *, conn_id: str) -> Installation:
    """Returns the installation in a connection's extra. Raises `ConnectionFieldError`, one line."""
    values: dict[str, str] = {}
    for name, meaning in FIELDS.items():
        value = extra.get(name)
        if not isinstance(value, str) or not value.strip():
            raise ConnectionFieldError(f"connection {conn_id} has no {name} in its extra ({meaning})")
        values[name] = value.strip()
    if not _ADDRESSES.fullmatch(values["bootstrap"]):
        raise ConnectionFieldError(
            f"connection {conn_id}: bootstrap {values['bootstrap']!r} is not HOST:PORT,…"
        )
    for name, schemes in _URL_FIELDS.items():
        # Records have schema ids of every source datacenter, so there may be several registries.
        for url in values[name].split(",") if name == "registry_url" else [values[name]]:
            unnamed = without_names(url) if name == "registry_url" else url.strip()
            scheme, separator, rest = unnamed.partition("://")
            if separator and rest and (schemes is None or scheme in schemes):
                continue
            expected = " or ".join(f"{scheme}://" for scheme in schemes or ("hdfs",))
            raise ConnectionFieldError(
                f"connection {conn_id}: {name} {values[name]!r} is not a URL with {expected}"
            )
    python = Path(values.pop("python"))
    if not python.is_absolute():
        raise ConnectionFieldError(f"connection {conn_id}: python {str(python)!r} is not an absolute path")
    zookeeper = extra.get("zookeeper")
    if zookeeper is not None and not (isinstance(zookeeper, str) and _ADDRESSES.match(zookeeper)):
        raise ConnectionFieldError(f"connection {conn_id}: zookeeper {zookeeper!r} is not HOST:PORT,…")
    return Installation(**values, python=python, zookeeper=zookeeper)
