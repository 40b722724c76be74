"""Where an installation is: the addresses that a connection of type `headrace` carries in its extra.

Owns the names of those fields and what is said when one is missing or wrong. Pure; knows no Airflow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FIELDS: Final[Mapping[str, str]] = {
    "bootstrap": "Brokers of the analysis cluster, HOST:PORT,…",
    "registry_url": "Schema registries, http://HOST:PORT,…, those of publishers first",
    "hdfs_url": "HDFS for Spark, hdfs://HOST:PORT",
    "webhdfs_url": "WebHDFS for metadata, http://HOST:PORT",
    "audit_store": "Audit store, an SQLAlchemy URL",
    "python": "Python with headrace[warehouse] and PySpark, an absolute path",
}
_URL_FIELDS: Final = {"registry_url": ("http", "https"), "hdfs_url": None, "webhdfs_url": ("http", "https")}
_ADDRESSES: Final = re.compile(r"[^\s,:]+:\d{1,5}(,[^\s,:]+:\d{1,5})*")


class ConnectionFieldError(ValueError):
    """A connection of type headrace lacks something or holds nonsense; whoever set it up can mend it."""


@dataclass(frozen=True, slots=True)
class Installation:
    """One headrace installation, as seen from Airflow. `python` is the environment that runs Spark."""

    bootstrap: str
    registry_url: str
    hdfs_url: str
    webhdfs_url: str
    audit_store: str
    python: Path

    @property
    def spark_submit(self) -> Path:
        """PySpark's own launcher, beside that environment's interpreter."""
        return self.python.parent / "spark-submit"


def parse_installation(extra: Mapping[str, Any], *, conn_id: str) -> Installation:
    """The installation that a connection's extra describes. Raises `ConnectionFieldError`, one line."""
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
        # Records carry schema ids of every datacenter that publishes, so there may be several registries.
        for url in values[name].split(",") if name == "registry_url" else [values[name]]:
            scheme, separator, rest = url.strip().partition("://")
            if separator and rest and (schemes is None or scheme in schemes):
                continue
            wanted = " or ".join(schemes or ("hdfs",))
            raise ConnectionFieldError(
                f"connection {conn_id}: {name} {values[name]!r} is not a URL of {wanted}"
            )
    python = Path(values.pop("python"))
    if not python.is_absolute():
        raise ConnectionFieldError(f"connection {conn_id}: python {str(python)!r} is not an absolute path")
    return Installation(**values, python=python)
