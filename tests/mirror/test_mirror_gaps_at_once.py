"""Several `headrace mirror accept-gap` on one topic, at once or over the years: each gap is accepted."""

from __future__ import annotations

import threading
import uuid
from types import SimpleNamespace

import pytest

from fix_broker import BrokerCluster, RawClient
from headrace.cli import mirror as commands
from headrace.client import Admin
from headrace.mirror.discovery import MIRROR_SETTING
from headrace.replication import gaps
from headrace.replication.gaps import AcceptedGap
from headrace.wire.batch import readdress
from headrace.wire.records import Record, encode_batch

BATCH = encode_batch([Record(0, 1_000, b"k", b"v")])
PARTITIONS = 8


def rows_of(topic: str, gaps_: list[tuple[int, int]]) -> list[dict[str, object]]:
    """What a mirror says of partitions that are halted over these gaps."""
    return [
        {"topic": topic, "partition": at, "target_partition": at, "gap": {"from": start, "to": end}}
        for at, (start, end) in enumerate(gaps_)
    ]


def pretend(monkeypatch: pytest.MonkeyPatch, bootstrap: str, rows: list[dict[str, object]]) -> None:
    """The commands' mirror copies from this cluster to itself, and says `rows`."""
    context = SimpleNamespace(
        mirrors=[SimpleNamespace(source="east", target="analysis")],
        datacenter=lambda _name: SimpleNamespace(bootstrap=bootstrap),
    )
    monkeypatch.setattr(commands, "context", lambda: context)
    monkeypatch.setattr(commands, "_status_of", lambda _: {"source": "east", "partitions": rows})


def test_a_topic_that_has_all_the_gaps_it_may_have_forgets_those_that_are_long_passed(
    one_broker: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some long outages of wide topics each further copy would have stayed halted for good."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    pretend(monkeypatch, one_broker.bootstrap, rows_of(topic, [(700, 800), (0, 50)]))
    full = [AcceptedGap(0, at, at + 1) for at in range(100, 100 + gaps.GAPS_MAX - 1)] + [AcceptedGap(1, 0, 9)]
    with Admin(one_broker.bootstrap) as admin, RawClient(one_broker.bootstrap) as client:
        config = {MIRROR_SETTING: "true", gaps.SETTING: gaps.to_text(full)}
        admin.create_topic(topic, 2, config=config)
        stored = bytearray(BATCH)
        readdress(stored, 0, 150, leader_epoch=0)
        assert client.produce(topic, 0, bytes(stored)).error_code == 0  # the copy begins at 150
        commands.accept_gap(topic, 0, "east", yes=True, json=False)
        accepted = gaps.parse(admin.describe_configs(topic)[gaps.SETTING].value or "")
    assert set(accepted) == {gap for gap in full if gap.to_address > 150 or gap.partition} | {
        AcceptedGap(0, 700, 800)
    }


def test_commands_at_once_do_not_overwrite_each_other_s_gaps(
    one_broker: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    pretend(
        monkeypatch,
        one_broker.bootstrap,
        rows_of(topic, [(100 * partition, 100 * partition + 50) for partition in range(PARTITIONS)]),
    )
    with Admin(one_broker.bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, config={MIRROR_SETTING: "true"})
        begin = threading.Barrier(PARTITIONS)

        def accept(partition: int) -> None:
            begin.wait(30.0)
            commands.accept_gap(topic, partition, "east", yes=True, json=False)

        threads = [threading.Thread(target=accept, args=(partition,)) for partition in range(PARTITIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        commands.accept_gap(topic, 3, "east", yes=True, json=False)  # a second time changes nothing
        accepted = gaps.parse(admin.describe_configs(topic)[gaps.SETTING].value or "")
    expected = [AcceptedGap(number, 100 * number, 100 * number + 50) for number in range(PARTITIONS)]
    assert sorted(accepted) == expected
