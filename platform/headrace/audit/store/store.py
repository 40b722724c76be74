"""The audit store: the reports of all tiers, in tables (SQLite, or PostgreSQL by URL).

Owns connections, transactions and positions; `audit.store.fold` folds each kind of record. The position in
the audit topics is stored in the same transaction as the records before it, so a crash at any moment repeats
work but changes nothing. One process folds; any number may read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, create_engine, event, inspect, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from headrace.audit.store import kept, measured_tables, tables
from headrace.audit.store.clocks import KNOWN_MAX, ClockOff, ClockWatch
from headrace.audit.store.columns import metadata
from headrace.audit.store.fold import fold_records
from headrace.audit.store.fold_ahead import fold_ahead, forget_ahead
from headrace.audit.store.fold_logs import LogFolder, last_read, lost_marks
from headrace.audit.store.fold_recount import forget_later_beats, forget_later_clocks
from headrace.audit.store.fold_set_aside import add_set_aside, read_set_aside
from headrace.audit.store.inserting import insert_new, upsert
from headrace.audit.store.later_columns import add_later_columns, fill_published
from headrace.audit.store.shape import misfit
from headrace.audit.topic.logs_read import NO_LOGS, LastRead, Log, LogsRead, Mark
from headrace.audit.topic.records import ReceivedRecord
from headrace.audit.topic.set_aside import SetAside
from headrace.process.clock import now_ms

BUSY_TIMEOUT_MS: Final = 30_000
READ_BUSY_TIMEOUT_MS: Final = 5_000  # a writer of the store never holds up readers for long
_DAMAGE_CODES: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PRIMARY_CODE_MASK: Final = 0xFF  # SQLite's extended codes have the primary one in their lowest byte


_WRITES: Final = "headrace_writes"


class StoreError(Exception):
    """The store cannot be opened; the message says what to do."""


class UnusableStoreError(StoreError):
    """What the store's file holds is damaged, or of another schema version: trying again does not help."""


def is_damage(error: BaseException) -> bool:
    """Whether an error of SQLAlchemy says that the bytes of a SQLite file are wrong."""
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None) or 0
    return code & _PRIMARY_CODE_MASK in _DAMAGE_CODES


def is_too_large(error: BaseException) -> bool:
    """Whether an error of SQLAlchemy says that a statement, or a row, is larger than the engine takes: what a
    record asks for, not the engine's state. PostgreSQL's class 54 is "program limit exceeded".
    """
    original = getattr(error, "orig", None)
    state, text = getattr(original, "sqlstate", None) or "", str(original)
    return state.startswith("54") or "too many SQL variables" in text or "number of parameters" in text


def problem_of(error: BaseException) -> str:
    """Returns the first line of what the database itself said."""
    return (str(getattr(error, "orig", None) or error).splitlines() or [type(error).__name__])[0]


def problem_now(error: SQLAlchemyError) -> str:
    """Returns the line for a store that was opened, and could not be read."""
    return f"the audit store cannot be read now: {problem_of(error)}; try again"


def parsed_url(url: str) -> URL:
    """Returns the URL of a store. Raises `StoreError`."""
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (SQLAlchemyError, ValueError) as error:
        # Most such errors quote the URL, and so its password.
        problem = (
            str(error) if isinstance(error, NoSuchModuleError) else "the audit store's URL can't be read"
        )
        raise StoreError(
            f"{problem}: write it as sqlite:////path/audit.db or postgresql+psycopg://USER:PASSWORD@HOST/NAME"
        ) from None
    return parsed


def shown_url(parsed: URL) -> str:
    """Returns the URL for people: without its password, also where that is an option of the driver."""
    hidden = {name: "hidden" for name in parsed.query if "pass" in name.lower()}
    return parsed.update_query_dict(hidden).render_as_string(hide_password=True)


def sqlite_file(url: str) -> Path | None:
    """Returns the file of a store in SQLite; None if it is in memory, or in another database."""
    parsed = parsed_url(url)
    name = parsed.database or ""
    if parsed.get_backend_name() != "sqlite" or name in ("", ":memory:") or name.startswith("file:"):
        return None
    return Path(name)


class StoreSharedError(StoreError):
    """Another process folds into the store: what this one has read does not follow on what is stored."""


class StoreMissingError(StoreError):
    """Nothing has created this store yet, or the URL is wrong."""


class AuditStore:
    """`AuditStore("sqlite:////path/audit.db")` or `AuditStore("postgresql+psycopg://…")`.

    Creates missing tables. With `must_exist`, for readers, it creates nothing, and a SQLite file is opened
    for reading alone: no writer's lock holds it up. Raises `StoreError`.
    """

    def __init__(self, url: str, *, must_exist: bool = False) -> None:
        parsed = parsed_url(url)
        self.url = shown_url(parsed)
        path = sqlite_file(url)
        if must_exist and path is not None and not path.is_file():
            raise StoreMissingError(f"there is no audit store at {path}")
        self._must_exist = must_exist
        try:
            if path is not None and not must_exist:
                path.parent.mkdir(parents=True, exist_ok=True)
            if must_exist and path is not None:
                self._engine = create_engine(url, creator=partial(_open_for_reading, path))
            else:
                self._engine = create_engine(url)
        except (OSError, ImportError) as error:
            raise StoreError(f"cannot open the audit store {self.url}: {error}") from error
        if self._engine.dialect.name == "sqlite":
            # Whether a file is in WAL mode is stored in it, so a reader leaves that as it is.
            event.listen(self._engine, "connect", _set_up_reader if must_exist else _set_up_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        try:
            self._open()
            self._clocks = ClockWatch() if must_exist else ClockWatch(self._clocks_off(), self._heard())
            self._logs = LogFolder() if must_exist else self._known_logs()
            self._folded = {} if must_exist else self.positions()
        except StoreError:
            self._engine.dispose()
            raise
        except SQLAlchemyError as error:
            self._engine.dispose()
            kind = UnusableStoreError if is_damage(error) else StoreError
            raise kind(f"cannot open the audit store {self.url}: {problem_of(error)}") from error

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Opens a transaction that sees one consistent state of the store."""
        with self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Opens a transaction that commits at the end, and rolls back on an error."""
        with self._engine.execution_options(**{_WRITES: True}).begin() as connection:
            yield connection

    def positions(self) -> dict[tuple[str, int], int]:
        """Returns (audit topic, partition) → the address up to which it is folded."""
        with self.reading() as connection:
            return _positions(connection)

    def logs_read(self) -> tuple[dict[Log, LastRead], list[Mark]]:
        """Returns of which log each position is, by the last record before it; and such records of logs that
        are lost.
        """
        with self.reading() as connection:
            return last_read(connection), lost_marks(connection)

    def producers(self) -> set[tuple[str, int]]:
        """Returns (datacenter, producer id) of every producer that has reported."""
        ids = tables.producer_ids
        with self.reading() as connection:
            rows = connection.execute(select(ids.c.datacenter, ids.c.producer_id))
            return {(row.datacenter, row.producer_id) for row in rows}

    def fold(
        self,
        records: Iterable[ReceivedRecord],
        positions: Mapping[tuple[str, int], int] | None = None,
        set_aside: Iterable[SetAside] = (),
        logs: LogsRead = NO_LOGS,
        *,
        seen_ms: int | None = None,
    ) -> None:
        """Folds records and stores `positions`, from which to read on, in one transaction.

        `set_aside`: what the reader did not believe of the records before these positions. `logs`: of which
        logs the positions are. `seen_ms`: when they were read; default: now. Raises `StoreSharedError`, and
        stores nothing, if another process has folded these logs since this store was opened.
        """
        for log in (*self._logs.made_again(logs), *logs.restarted):
            self._clocks.forget(log)
        measured = self._clocks.measure(records)
        clocks = [each._asdict() for each in measured.found]
        with self.writing() as connection:
            kept.take_turn(connection)
            self._check_alone(connection, positions or {})
            read_ms = now_ms() if seen_ms is None else seen_ms
            self._logs.fold(connection, logs, measured.records, read_ms)
            begin = 0
            for end in (*measured.set_back, len(measured.records)):
                fold_records(connection, measured.records[begin:end])
                fold_ahead(connection, measured.records[begin:end], read_ms)
                for back in measured.records[end : end + 1]:
                    forget_later_beats(connection, back)
                    forget_ahead(connection, back)
                begin = end
            for clock in clocks:
                kept.forget_topics_of(connection, clock["datacenter"], clock["publisher"])
            forget_later_clocks(connection, measured.set_back_ms)
            upsert(connection, measured_tables.clocks, clocks, newer_by="said_ms")
            heard = [
                {"topic": topic, "partition": partition, "tier": tier, "at_ms": at_ms}
                for ((topic, partition), tier), at_ms in measured.last_ms.items()
            ]
            upsert(connection, measured_tables.heard, heard)
            rows = [
                {"topic": topic, "partition": partition, "address": address}
                for (topic, partition), address in (positions or {}).items()
            ]
            upsert(connection, tables.folded, rows)
            for each in set_aside:
                add_set_aside(connection, each)
        self._clocks.remember(measured)
        self._logs.remember(logs)
        self._folded.update(positions or {})

    def _check_alone(self, connection: Connection, positions: Mapping[tuple[str, int], int]) -> None:
        """Raises `StoreSharedError` unless these logs are stored as this process left them. A recount takes
        back what was counted before it, once: from another process, which reads behind, that would come back.
        """
        stored = _positions(connection)
        for log in positions:
            if stored.get(log) != self._folded.get(log):
                raise StoreSharedError(
                    f"another process folds into the audit store {self.url}: {log[0]}-{log[1]} is folded up "
                    f"to address {stored.get(log)}, and this process left it at {self._folded.get(log)}. It "
                    "goes on from there; stop one of both: each site has one auditor with a store"
                )

    def refuses(self, received: ReceivedRecord) -> str:
        """Returns why the store cannot hold this record; "" if it can. Changes nothing.

        Raises the `SQLAlchemyError` of a damaged store, which is not the record's fault.
        """
        with self._engine.connect() as connection:
            transaction = connection.begin()
            try:
                fold_records(connection, [received])
            except (SQLAlchemyError, OverflowError, ValueError) as error:
                if is_damage(error):
                    raise
                return str(getattr(error, "orig", None) or error)
            finally:
                transaction.rollback()
        return ""

    def _clocks_off(self) -> list[ClockOff]:
        """Returns the clocks that are off."""
        table = measured_tables.clocks
        columns = [table.c[name] for name in ClockOff._fields]
        query = select(*columns).where(table.c.skew_ms != 0).order_by(table.c.said_ms.desc())
        with self.reading() as connection:
            return [ClockOff(*row) for row in connection.execute(query.limit(KNOWN_MAX))]

    def _heard(self) -> dict[tuple[tuple[str, int], str], int]:
        """Returns (log of an audit topic, tier) → when the last heartbeat in it was said."""
        with self.reading() as connection:
            rows = connection.execute(select(measured_tables.heard))
            return {((row.topic, row.partition), row.tier): row.at_ms for row in rows}

    def _known_logs(self) -> LogFolder:
        with self.reading() as connection:
            return LogFolder(connection)

    def set_aside(self) -> list[SetAside]:
        """Returns what was set aside of the audit topics, by (topic, partition)."""
        with self.reading() as connection:
            return read_set_aside(connection)

    def _open(self) -> None:
        found = self._existing_version() if self._must_exist else self._created_version()
        if found != str(tables.SCHEMA_VERSION):
            raise UnusableStoreError(
                f"the audit store {self.url} has schema version {found}, but this program needs version "
                f"{tables.SCHEMA_VERSION} (the auditor rebuilds a SQLite store by itself; else give it a new "
                "database)"
            )

    def _created_version(self) -> str:
        with self.writing() as connection:
            metadata.create_all(connection)
            fill_published(connection)
            for index in tables.spans.indexes:  # a store of an earlier version has others
                index.create(connection, checkfirst=True)
            add_later_columns(connection)
            version = {"name": "schema_version", "value": str(tables.SCHEMA_VERSION)}
            insert_new(connection, tables.meta, version)
            found = _stored_version(connection)
            if found == version["value"] and (problem := misfit(connection)):
                raise UnusableStoreError(
                    f"the audit store {self.url} is not as this program needs it: {problem} (the auditor "
                    "rebuilds a SQLite store by itself; else give it a new database)"
                )
            return found

    def _existing_version(self) -> str:
        """Reads the version of a store that must be there; writes nothing."""
        with self.reading() as connection:
            if not inspect(connection).has_table(tables.meta.name):
                raise StoreMissingError(f"{self.url} is no audit store: it has no table {tables.meta.name}")
            return _stored_version(connection)


def _positions(connection: Connection) -> dict[tuple[str, int], int]:
    rows = connection.execute(select(tables.folded))
    return {(row.topic, row.partition): row.address for row in rows}


def _stored_version(connection: Connection) -> str:
    query = select(tables.meta.c.value).where(tables.meta.c.name == "schema_version")
    return str(connection.execute(query).scalar_one())


def _begin_sqlite(connection: Connection) -> None:
    """Begins each transaction by itself: Python's sqlite3 would begin none for reads and for new tables. A
    writer takes its lock at once, because one that reads first could not wait for another one.
    """
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _open_for_reading(path: Path) -> sqlite3.Connection:
    """Opens a SQLite file that nothing may change through this connection."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)


def _set_up_reader(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={READ_BUSY_TIMEOUT_MS}")


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={BUSY_TIMEOUT_MS}"):
        connection.execute(f"PRAGMA {pragma}")
