"""A line for a person for each expected error. Only unexpected errors show a traceback.

Owns the recognition of errors that come out of Spark, HDFS and the brokers.
"""

import re
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from headrace.audit.store.store import StoreError, problem_now
from headrace.coordination.errors import CoordinationError
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


def known_error(error: Exception, what: str) -> str | None:
    """Returns the line for an expected error, or None for any other. `what` names the work that failed."""
    if isinstance(error, KNOWN):
        return _line(str(error))
    if isinstance(error, CoordinationError):
        return _line(f"{what}: {error}")
    if isinstance(error, StoreError):
        return _line(f"{what}: {error}; check the URL, and that the auditor runs which folds it")
    if isinstance(error, SQLAlchemyError):
        return _line(f"{what}: {problem_now(error)}")
    if type(error).__module__.startswith("headrace.audit.topic"):
        return _line(
            f"{what}: what was done, or found, is not reported to the audit: {error}; the next run reports it"
        )
    text = str(error)
    found = _SOURCE_ERROR.search(text)
    if found is not None:
        return _line(f"{what}: {found[2]}")
    named = explain(text, what)
    return _line(str(named)) if named is not None else None


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LINE_SIZE_MAX else line[: LINE_SIZE_MAX - 3] + "..."
