"""Publishers of several services start at once in one state directory: none is in another one's way."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from headrace.events import succession
from headrace.events.claims import claim
from headrace.events.succession import adopt, open_journal

WHO: dict[str, str | int] = {
    "publisher": "p", "datacenter": "east", "service": "checkout", "server": "co1", "bootstrap": "b:9092",
    "audit_topic": "_audit", "bucket_ms": 600_000,
}  # fmt: skip
CLUSTER = UUID(int=1)


def test_a_publisher_that_starts_locks_no_journal_of_other_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All services of a host start at once: an heir whose journal another one looks at takes it for a living
    publisher's, and looks at it once. Its hours would stay unknown until the service starts again."""
    theirs = {**WHO, "service": "search"}
    dead = open_journal(tmp_path, "dead", theirs, 5)
    assert dead is not None
    dead.belongs_to(CLUSTER)
    dead.leave()
    claimed: list[Path] = []

    def noted(path: Path) -> int | None:
        claimed.append(path)
        return claim(path)

    monkeypatch.setattr(succession, "claim", noted)
    assert adopt(tmp_path, WHO, CLUSTER, lambda _: None) == 0
    assert claimed == []
    assert adopt(tmp_path, theirs, CLUSTER, lambda _: None) == 1
    assert claimed == [dead.path]
