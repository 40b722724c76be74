"""Several `headrace mirror accept-gap` at once, on one topic: each gap is accepted."""

from __future__ import annotations

import threading
import uuid
from types import SimpleNamespace

import pytest

from fix_broker import BrokerCluster
from headrace.cli import mirror as commands
from headrace.client import Admin
from headrace.mirror.discovery import MIRROR_SETTING
from headrace.replication import gaps
from headrace.replication.gaps import AcceptedGap

PARTITIONS = 8


def test_commands_at_once_do_not_overwrite_each_other_s_gaps(
    one_broker: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "target_partition": partition,
            "gap": {"from": 100 * partition, "to": 100 * partition + 50},
        }
        for partition in range(PARTITIONS)
    ]
    context = SimpleNamespace(
        mirrors=[SimpleNamespace(source="east", target="analysis")],
        datacenter=lambda _name: SimpleNamespace(bootstrap=one_broker.bootstrap),
    )
    monkeypatch.setattr(commands, "context", lambda: context)
    monkeypatch.setattr(commands, "_status_of", lambda _: {"source": "east", "partitions": rows})
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
