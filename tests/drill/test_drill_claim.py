"""One drill at a time works on the canary's table, from whatever host."""

from __future__ import annotations

import pytest

from fix_zookeeper import ZooKeeperRoom
from headrace.coordination import znodes
from headrace.coordination.session import ZooKeeperSession
from headrace.drill.claim import claimed
from headrace.drill.errors import DrillError, TableClaimedError


def test_the_second_drill_is_told_which_one_has_the_table(zookeeper: ZooKeeperRoom) -> None:
    with claimed(zookeeper.hosts, "first"):
        with (
            pytest.raises(TableClaimedError, match="drill first works on its table"),
            claimed(zookeeper.hosts, "second", wait_s=0.2),
        ):
            pass
        with ZooKeeperSession(zookeeper.hosts) as session:
            assert session.get(znodes.DRILL).data == b"first"
    with claimed(zookeeper.hosts, "third", wait_s=0.2):
        pass


def test_a_drill_that_fails_gives_its_claim_back(zookeeper: ZooKeeperRoom) -> None:
    with pytest.raises(ValueError, match="broken"), claimed(zookeeper.hosts, "first"):
        raise ValueError("broken")
    with claimed(zookeeper.hosts, "second", wait_s=0.2):
        pass


def test_without_zookeeper_the_table_cannot_be_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.drill.claim.CONNECT_MAX_S", 0.2)
    with (
        pytest.raises(DrillError, match=r"cannot be claimed: no ZooKeeper answered at 127\.0\.0\.1:1"),
        claimed("127.0.0.1:1", "first"),
    ):
        pass
