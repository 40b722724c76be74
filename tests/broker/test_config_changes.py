"""A change of settings is answered once the broker that made it sees it: who describes it then finds it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fix_broker import BrokerCluster
from fix_difference_admin import APPEND, BROKER, DELETE, SET, TOPIC, altered
from fix_differences import Asker
from headrace.wire.apis import ApiKey

Resource = tuple[int, str, list[tuple[str, int, str | None]]]
ROUNDS = 20
SUBTRACT = 3
THROTTLED = "leader.replication.throttled.replicas"
RATE = "leader.replication.throttled.rate"


@pytest.fixture
def asker(one_broker: BrokerCluster) -> Iterator[Asker]:
    made = Asker(one_broker.bootstrap)
    yield made
    made.close()


def value_of(asker: Asker, kind: int, name: str, setting: str) -> str | None:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [setting]}
    response = asker.ask(
        ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=False, include_documentation=False
    )
    (value,) = [config.value for each in response.results for config in each.configs]
    return None if value is None else str(value)


def test_of_a_topic(asker: Asker) -> None:
    name = asker.topic()
    for i in range(ROUNDS):
        wanted = str(70_000 + i)
        assert altered(asker, (TOPIC, name, [("retention.ms", SET, wanted)])) == [(TOPIC, "NONE")]
        assert value_of(asker, TOPIC, name, "retention.ms") == wanted


def test_of_a_broker(asker: Asker) -> None:
    for i in range(ROUNDS):
        wanted = str(70_000 + i)
        assert altered(asker, (BROKER, "1", [(RATE, SET, wanted)])) == [(BROKER, "NONE")]
        assert value_of(asker, BROKER, "1", RATE) == wanted
    assert altered(asker, (BROKER, "1", [(RATE, DELETE, None)])) == [(BROKER, "NONE")]
    assert value_of(asker, BROKER, "1", RATE) != wanted


def test_what_changes_nothing_or_is_refused_waits_for_nothing(asker: Asker) -> None:
    """The request's other changes are not held up by it either."""
    name = asker.topic()
    same: Resource = (TOPIC, name, [("retention.ms", SET, "70000")])
    for _ in range(ROUNDS):
        wrong: Resource = (TOPIC, asker.topic(), [("retention.ms", SET, "soon")])
        assert [code for _, code in altered(asker, same, wrong)] == ["NONE", "INVALID_CONFIG"]


def test_a_list_gets_words_and_loses_words(asker: Asker) -> None:
    name = asker.topic()
    for operation, words, expected in (
        (SUBTRACT, "0:1", ""),
        (APPEND, "0:1,0:2", "0:1,0:2"),
        (APPEND, "0:2,0:3", "0:1,0:2,0:3"),
        (SUBTRACT, "0:2,7:7", "0:1,0:3"),
        (SUBTRACT, "0:3,0:1", ""),
    ):
        assert altered(asker, (TOPIC, name, [(THROTTLED, operation, words)])) == [(TOPIC, "NONE")]
        assert value_of(asker, TOPIC, name, THROTTLED) == expected


def test_many_words_of_a_list_hold_nobody_up(asker: Asker) -> None:
    """Each word of the one was compared with each of the other: 6 s of a request of 180 kB, and a client may
    send many."""
    name = asker.topic()
    present, others = (",".join(f"{number}:{broker}" for number in range(20_000)) for broker in (1, 2))
    assert altered(asker, (TOPIC, name, [(THROTTLED, SET, present)])) == [(TOPIC, "NONE")]
    changes: Resource = (TOPIC, name, [(THROTTLED, SUBTRACT, others)])
    assert [altered(asker, changes) for _ in range(20)] == [[(TOPIC, "NONE")]] * 20
    assert value_of(asker, TOPIC, name, THROTTLED) == present
    too_many = ",".join(f"{number}:1" for number in range(60_000))
    for operation in (APPEND, SUBTRACT):
        assert altered(asker, (TOPIC, name, [(THROTTLED, operation, too_many)])) == [
            (TOPIC, "POLICY_VIOLATION")
        ]


@pytest.mark.parametrize(
    ("setting", "operation", "value", "code"),
    [
        (THROTTLED, APPEND, "x", "INVALID_CONFIG"),
        (THROTTLED, APPEND, None, "INVALID_REQUEST"),
        ("retention.ms", SUBTRACT, "1", "INVALID_CONFIG"),
        ("no.such.setting", APPEND, "1", "INVALID_CONFIG"),
        ("retention.ms", 9, "1", "INVALID_CONFIG"),
    ],
)
def test_what_cannot_be_added_is_refused(
    asker: Asker, setting: str, operation: int, value: str | None, code: str
) -> None:
    assert altered(asker, (TOPIC, asker.topic(), [(setting, operation, value)])) == [(TOPIC, code)]
