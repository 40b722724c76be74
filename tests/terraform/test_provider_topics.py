"""Topics and schemas by the real terraform, on a real broker that it starts: changes, refusals, data kept."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quick_kinds_agent
from fix_agent import HOST, RunningAgent
from fix_audit_world import HOUR_A, REPORTED_MS, TOPIC, Batch, PartitionBytes, counted
from fix_audit_world import received as as_received
from fix_ports import free_port
from fix_terraform import Workspace
from fix_zookeeper import ZooKeeperRoom
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.records import DATACENTER_TIER
from headrace.client.admin import Admin
from headrace.client.producer import Producer
from headrace.coordination.consumers import ConsumerRegistry
from headrace.registry.client import SchemaRegistryClient

Make = Callable[[str], Workspace]
FIELD = {"name": "id", "type": "long"}


@pytest.fixture
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    home = tmp_path_factory.mktemp("terraform") / "home"
    home.mkdir()
    made = RunningAgent(home)
    try:
        made.start(quick_kinds_agent.PROGRAM)
        yield made
    finally:
        made.close()


def publish(broker: str, topic: str, count: int) -> None:
    with Producer(broker) as producer:
        for number in range(count):
            producer.send(topic, f"event {number}".encode(), partition=0)


def count_at_datacenter(url: str, count: int) -> None:
    """Fills an audit store with the counts of a datacenter tier alone: `count` events of 2015."""
    log = PartitionBytes()
    log.append(Batch(0, 20, 0, 0, count, HOUR_A).encode())
    store = AuditStore(url)
    store.fold([as_received(each, time_ms=REPORTED_MS) for each in counted(DATACENTER_TIER, {0: log})])
    store.close()


@pytest.mark.slow
def test_topics_and_schemas_are_managed_and_data_is_not_destroyed_by_mistake(
    workspace: Make, agent: RunningAgent, zookeeper: ZooKeeperRoom, registry_url: str, tmp_path: Path
) -> None:
    broker = f"{HOST}:{free_port(HOST)}"

    def topic(
        name: str, partitions: int, retention_ms: str, brokers: str, allow: bool = False, more: str = ""
    ) -> str:
        return f"""
resource "headrace_topic" "{name}" {{
  bootstrap_servers = [{brokers}]
  name              = "{name}"
  partitions        = {partitions}
  config            = {{ "retention.ms" = "{retention_ms}" }}
  allow_data_loss   = {str(allow).lower()}
  {more}
}}
"""

    def hcl(partitions: int, retention_ms: str, *fields: object, more: str = "") -> str:
        schema = json.dumps({"type": "record", "name": "Click", "fields": [FIELD, *fields]})
        return f"""
provider "headrace" {{
  home = "{agent.home}"
}}

resource "headrace_broker" "b" {{
  host       = "local"
  name       = "b"
  datacenter = "east"
  broker_id  = 1
  zookeeper  = "{zookeeper.hosts}"
  listen     = "{broker}"
  rack       = "r1"
}}
{topic("clicks", partitions, retention_ms, "headrace_broker.b.listen", True, "min_insync_replicas = 1")}
resource "headrace_schema" "clicks" {{
  registry_url = "{registry_url}"
  subject      = "clicks-value"
  schema       = {json.dumps(schema)}
}}
{more}
"""

    store = f"sqlite:///{tmp_path}/audit.db"
    count_at_datacenter(store, 7)
    folder = workspace(hcl(2, "86400000"))
    assert "3 added" in folder.apply()
    with Admin(broker) as admin:
        assert len(admin.topic("clicks").partitions[0].replicas) == 1, "one broker is there"
        least = admin.describe_configs("clicks")["min.insync.replicas"]
        assert (least.value, least.is_own) == ("1", True)
        assert admin.describe_broker_configs(1)["broker.rack"].value == "r1"
    publish(broker, "clicks", 10)
    with zookeeper.session() as session:
        ConsumerRegistry(session, "dashboards").commit("clicks", 0, 0)

    bad = topic("bad", 1, "soon", f'"{broker}"')
    bad += topic("worse", 1, "1", f'"{broker}"', more='producers = "some"')
    folder.write(hcl(1, "86400000", {"name": "required", "type": "string"}, more=bad))
    output = " ".join(folder.plan(code=1).split())
    for line, message in (
        (
            "partitions = 1",
            "clicks has 2 partitions, and the plan has 1: the data of the others would be lost",
        ),
        ('config = { "retention.ms" = "soon" }', "INVALID_CONFIG"),
        ('producers = "some"', "producers is 'some'; expected reporting or any"),
        ("schema = ", "The schema is incompatible|required"),
    ):
        assert re.search(rf"on main\.tf line \d+, .*: {re.escape(line)}.*({message})", output), output

    more = f"""
data "headrace_topic" "clicks" {{
  bootstrap_servers = ["{broker}"]
  name              = headrace_topic.clicks.name
}}
output "size_bytes" {{ value = data.headrace_topic.clicks.size_bytes }}
output "lags" {{ value = data.headrace_topic.clicks.lags_bytes }}

data "headrace_audit_verdict" "all" {{
  store     = "{store}"
  topic     = "{TOPIC}"
  from_hour = "2015-05-17T11:00:00Z"
}}
output "verdict" {{ value = data.headrace_audit_verdict.all.status }}
output "counts" {{ value = data.headrace_audit_verdict.all.counts }}
"""
    kept = topic(TOPIC, 1, "-1", f'"{broker}"', more=f'audit_store = "{store}"\n  producers = "any"')
    page = {"name": "page", "type": ["null", "string"], "default": None}
    folder.write(hcl(3, "172800000", page, more=more + kept))
    output = folder.apply()
    assert "1 added, 2 changed, 0 destroyed" in output
    with Admin(broker) as admin, SchemaRegistryClient(registry_url) as registry:
        assert len(admin.topic("clicks").partitions) == 3
        assert admin.describe_configs("clicks")["retention.ms"].value == "172800000"
        assert registry.versions("clicks-value") == [1, 2]
        assert admin.describe_configs(TOPIC)["headrace.producers"].value == "any"
        assert not admin.describe_configs("clicks")["headrace.producers"].is_own
        size_bytes = admin.list_offsets("clicks")[0].offset
        assert size_bytes > 0
        assert 'verdict    = "unknown"' in output and re.search(r'"datacenter" += 7\n', output)
        assert f"size_bytes = {size_bytes}" in output and f'"dashboards" = {size_bytes}' in output

        admin.create_topic("by-hand", 1)
        publish(broker, "by-hand", 1)
        publish(broker, TOPIC, 10)
        with zookeeper.session() as session:
            ConsumerRegistry(session, "dashboards").commit(TOPIC, 0, 0)
        size_bytes = admin.list_offsets(TOPIC)[0].offset
        output = " ".join(folder.plan("-destroy", code=1).split())
        assert (
            f"Topic {TOPIC} holds data" in output and f"It holds {size_bytes} bytes in 1 partition" in output
        )
        assert "By the audit's count 7 of its events are not in HDFS yet" in output
        assert f"dashboards ({size_bytes} bytes behind)" in output and "allow_data_loss = true" in output
        # A topic that this plan is allowed to delete does not keep the broker.
        assert "Broker b holds data" in output and "in 2 partitions of by-hand, page-view." in output
        admin.delete_topic("by-hand")
        admin.delete_topic(TOPIC)
    assert "3 destroyed" in folder.run("destroy", "-auto-approve")
    assert agent.client.units() == []
