"""A topic in a state that an older provider wrote, before `replication_factor` was known there."""

from __future__ import annotations

import json
import subprocess

import pytest

from fix_broker import StartCluster
from fix_terraform import VENV
from headrace.client import Admin

# The provider's plan and update without a refresh, as `terraform apply -refresh=false` asks for them.
UPDATE = """
import json, sys, threading
from headrace.provider.planning import change_of
from headrace.provider.resource import Context, ResourceCall
from headrace.provider.topics import SCHEMA, TopicResource

prior, config = (SCHEMA.complete(values) for values in json.loads(sys.argv[1]))
call, topics = ResourceCall(threading.Event()), TopicResource(Context())
plan = topics.plan(call, change_of(SCHEMA, config, prior))
print(json.dumps(topics.update(call, prior, plan.planned)))
"""


@pytest.mark.parametrize("factor", [None, 1])
def test_a_setting_changes_without_a_refresh(
    terraform: None, broker_cluster: StartCluster, factor: int | None
) -> None:
    cluster = broker_cluster()
    with Admin(cluster.bootstrap) as admin:
        topic_id = str(admin.create_topic("clicks", 1, 1))
        common = {"name": "clicks", "bootstrap_servers": [cluster.bootstrap], "partitions": 1}
        prior = {**common, "config": {}, "id": "clicks", "topic_id": topic_id, "allow_data_loss": False}
        config = {**common, "config": {"retention.ms": "60000"}, "replication_factor": factor}
        command = [str(VENV / "bin" / "python"), "-c", UPDATE, json.dumps([prior, config])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["config"] == {"retention.ms": "60000"}
        assert admin.describe_configs("clicks")["retention.ms"].value == "60000"
