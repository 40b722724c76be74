"""One line for whatever went wrong. Owns the recognition of errors that come out of Spark, HDFS and the
brokers.

A user meets these lines only; a traceback stays for what nobody foresaw.
"""

import re
from typing import Final

from headrace.registry.errors import RegistryError, RegistryUnavailableError
from headrace.warehouse.commitlog import CommitConflictError
from headrace.warehouse.counting import NotParquetError
from headrace.warehouse.dead import DeadLettersError
from headrace.warehouse.hdfs.errors import HdfsError, explain
from headrace.warehouse.jars import JarsError
from headrace.warehouse.layout import TopicNameError
from headrace.warehouse.loading import LoadError
from headrace.warehouse.manifest import ManifestError
from headrace.warehouse.plan import PlanError
from headrace.warehouse.schemas import SchemasError
from headrace.warehouse.seal import NotSealedError
from headrace.warehouse.source.errors import SourceError
from headrace.warehouse.tables import NoSuchTableError
from headrace.wire.errors import WireError

LINE_SIZE_MAX: Final = 600

KNOWN: Final[tuple[type[Exception], ...]] = (
    CommitConflictError,
    DeadLettersError,
    HdfsError,
    JarsError,
    LoadError,
    ManifestError,
    NoSuchTableError,
    NotParquetError,
    NotSealedError,
    PlanError,
    RegistryError,
    RegistryUnavailableError,
    SchemasError,
    SourceError,
    TopicNameError,
    WireError,
)

_SOURCE_ERROR = re.compile(r"headrace\.warehouse\.source\.errors\.(\w+): ([^\n]+)")


class WarehouseError(Exception):
    """Spark failed for a reason that has a name. `retriable`: the same command may succeed later."""

    def __init__(self, message: str, *, retriable: bool) -> None:
        super().__init__(message)
        self.retriable = retriable


def known_error(error: Exception, what: str) -> str | None:
    """The line to tell for `error`, or None if it is nothing foreseen. `what` names the work."""
    if isinstance(error, (*KNOWN, WarehouseError)):
        return _line(str(error))
    if type(error).__module__.startswith("headrace.audit"):
        return _line(
            f"{what}: the change is committed, but the audit wasn't told: {error}; the next run tells it"
        )
    text = str(error)
    found = _SOURCE_ERROR.search(text)
    if found is not None:
        return _line(f"{what}: {found[2]}")
    named = explain(text, what)
    return _line(str(named)) if named is not None else None


def is_retriable(error: Exception) -> bool:
    """Whether the same command may succeed later without anybody mending anything."""
    if isinstance(error, (CommitConflictError, DeadLettersError, RegistryUnavailableError)):
        return True
    if isinstance(error, (HdfsError, SourceError, WarehouseError)):
        return bool(error.retriable)
    named = explain(str(error), "")
    return named is not None and named.retriable


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LINE_SIZE_MAX else line[: LINE_SIZE_MAX - 3] + "..."
