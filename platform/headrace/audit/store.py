"""The audit store: the reports of all tiers, in tables (SQLite, or PostgreSQL by URL).

Owns connections, transactions and positions; `audit.fold` folds each kind of record. The position in the
audit topics is stored in the same transaction as the records before it, so a crash at any moment repeats work
but changes nothing. One process folds; any number may read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, create_engine, event, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from headrace.audit import tables
from headrace.audit.fold import add_set_aside, fold_records, insert_new, read_set_aside, upsert
from headrace.audit.records import ReceivedRecord
from headrace.audit.set_aside import SetAside

BUSY_TIMEOUT_MS: Final = 30_000


class StoreError(Exception):
    """The store cannot be opened, or has another schema version; the message says what to do."""


class AuditStore:
    """`AuditStore("sqlite:////path/audit.db")` or `AuditStore("postgresql+psycopg://…")`.

    Creates missing tables. Raises `StoreError`.
    """

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self.url = parsed.render_as_string(hide_password=True)
        if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
            Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
        self._engine = create_engine(url)
        if self._engine.dialect.name == "sqlite":
            event.listen(self._engine, "connect", _set_up_sqlite)
        try:
            self._open()
        except SQLAlchemyError as error:
            self._engine.dispose()
            problem = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise StoreError(f"cannot open the audit store {self.url}: {problem}") from error

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
        with self._engine.begin() as connection:
            yield connection

    def positions(self) -> dict[tuple[str, int], int]:
        """Returns (audit topic, partition) → the address up to which it is folded."""
        with self.reading() as connection:
            rows = connection.execute(select(tables.folded))
            return {(row.topic, row.partition): row.address for row in rows}

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
    ) -> None:
        """Folds records and stores `positions`, from which to read on, in one transaction.

        `set_aside`: what the reader did not believe of the records before these positions.
        """
        with self.writing() as connection:
            fold_records(connection, records)
            rows = [
                {"topic": topic, "partition": partition, "address": address}
                for (topic, partition), address in (positions or {}).items()
            ]
            upsert(connection, tables.folded, rows)
            for each in set_aside:
                add_set_aside(connection, each)

    def refuses(self, received: ReceivedRecord) -> str:
        """Returns why the store cannot hold this record; "" if it can. Changes nothing."""
        with self._engine.connect() as connection:
            transaction = connection.begin()
            try:
                fold_records(connection, [received])
            except (SQLAlchemyError, OverflowError, ValueError) as error:
                return str(getattr(error, "orig", None) or error)
            finally:
                transaction.rollback()
        return ""

    def set_aside(self) -> list[SetAside]:
        """Returns what was set aside of the audit topics, by (topic, partition)."""
        with self.reading() as connection:
            return read_set_aside(connection)

    def _open(self) -> None:
        with self.writing() as connection:
            tables.metadata.create_all(connection)
            version = {"name": "schema_version", "value": str(tables.SCHEMA_VERSION)}
            if insert_new(connection, tables.meta, version):
                return
            found = connection.execute(
                select(tables.meta.c.value).where(tables.meta.c.name == version["name"])
            ).scalar_one()
        if found != version["value"]:
            raise StoreError(
                f"the audit store {self.url} has schema version {found}, but this program needs version "
                f"{tables.SCHEMA_VERSION}: give another URL, and the store is rebuilt from _audit"
            )


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={BUSY_TIMEOUT_MS}"):
        connection.execute(f"PRAGMA {pragma}")
