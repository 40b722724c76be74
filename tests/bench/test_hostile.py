"""Each attack of `make bench-hostile`, for a moment, beside an honest client that is served."""

from __future__ import annotations

import time

import pytest
from attacks.frames import TOPIC

from fix_broker import RawClient, StartCluster
from fuzzing.honest import TOPIC as HONEST
from fuzzing.honest import HonestClient
from hostile import ATTACKS, Attack, Row, chosen, exit_code

MOMENT_S = 0.3


@pytest.fixture(scope="module")
def address(module_clusters: StartCluster) -> str:
    """A broker that no other test uses: what is left of an attack, as its topics, is not theirs."""
    cluster = module_clusters(1)
    with RawClient(cluster.bootstrap) as client:
        client.create_topic(TOPIC.decode())
        client.create_topic(HONEST)
    return cluster.bootstrap


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_hurts_nobody(attack: Attack, address: str) -> None:
    honest = HonestClient(address)
    honest.start()
    count = attack(address, time.monotonic() + MOMENT_S)
    seen = honest.finish()
    assert count >= 0
    assert seen.fault is None
    assert seen.latencies_s


def test_rows_are_chosen_by_name() -> None:
    assert chosen("") == list(ATTACKS)
    assert [attack.__name__ for attack in chosen("waiting_fetches, halves")] == ["waiting_fetches", "halves"]
    with pytest.raises(ValueError, match=r"there is no attack a, b; there are produce_topics, .*halves"):
        chosen("a halves b")


def test_the_exit_code_judges_the_slowest_row() -> None:
    fast, slow = Row("a", 1, 1, 1.0, 99.0, 500.0, 1.0, None), Row("b", 1, 1, 1.0, 101.0, 500.0, 1.0, None)
    faulty = Row("c", 1, 1, 1.0, 1.0, 1.0, 1.0, "no answer")
    assert [exit_code(rows) for rows in ([fast], [fast, slow], [fast, faulty])] == [0, 1, 1]
