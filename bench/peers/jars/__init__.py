"""The bench's Java artifacts: the other brokers, their clients, and the bench's own Java programs.

Owns the pom files beside this module and `$HEADRACE_HOME/jars/bench-<set>/`. A folder holds the jars and, in
`classes/`, the programs of bench/clients/java and bench/peers/java that are compiled against them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.warehouse.jars import JarSet, ensure_set

_HERE: Final = Path(__file__).parent
_CLIENTS: Final = _HERE.parents[1] / "clients" / "java"
_PEERS: Final = _HERE.parent / "java"
SOURCES: Final[dict[str, tuple[Path, ...]]] = {
    "kafka": (),
    "kafka-mirror": (),
    "activemq": (
        _PEERS / "ActiveMqServer.java",
        _CLIENTS / "Measure.java",
        _CLIENTS / "Options.java",
        _CLIENTS / "Progress.java",
        _CLIENTS / "JmsBench.java",
    ),
    "rabbitmq": (
        _CLIENTS / "Measure.java",
        _CLIENTS / "Options.java",
        _CLIENTS / "Progress.java",
        _CLIENTS / "AmqpBench.java",
        _CLIENTS / "StreamBench.java",
    ),
}


def bench_set(name: str) -> JarSet:
    """Returns what the set `name`, a key of `SOURCES`, is made from."""
    return JarSet(f"bench-{name}", _HERE / f"{name}.xml", SOURCES[name])


def bench_jars(name: str, home: Path | None = None) -> Path:
    """Returns the folder of the set `name`, fetched if it is missing. Raises `JarsError`."""
    return ensure_set(bench_set(name), home=home)


def class_path(jars: Path) -> str:
    """Returns the class path of a folder: the bench's own programs, and all jars."""
    return f"{jars / 'classes'}:{jars}/*"
