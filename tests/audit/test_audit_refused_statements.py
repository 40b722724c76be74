"""Errors of a store's engine that are a record's fault: what asks for too much is set aside, nothing else."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import OperationalError

from headrace.audit.store.store import is_too_large


class ServerError(Exception):
    def __init__(self, text: str, sqlstate: str | None = None) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("text", "sqlstate", "is_records_fault"),
    [
        ("too many SQL variables", None, True),
        ("the query has 70000 parameters: number of parameters must be between 0 and 65535", None, True),
        ("index row size 10016 exceeds btree version 4 maximum 2704", "54000", True),
        ("stack depth limit exceeded", "54001", True),
        ("database is locked", None, False),
        ("disk I/O error", None, False),
        ("server closed the connection unexpectedly", None, False),
        ("deadlock detected", "40P01", False),
        ("could not extend file: No space left on device", "53100", False),
    ],
)
def test_only_what_a_record_asks_for_is_its_fault(
    text: str, sqlstate: str | None, is_records_fault: bool
) -> None:
    error = OperationalError("INSERT", {}, ServerError(text, sqlstate))
    assert is_too_large(error) == is_records_fault
