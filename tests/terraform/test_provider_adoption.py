"""Topics that exist already: adopted if they are as planned, in all that the plan says. Real terraform."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_broker import BrokerCluster
from fix_terraform import Workspace
from headrace.client.admin import Admin

TOPIC = """
resource "headrace_topic" "t" {{
  bootstrap_servers   = ["{servers}"]
  name                = "theirs"
  partitions          = 1
  replication_factor  = 1
  min_insync_replicas = {least}
}}
"""


@pytest.mark.slow
def test_a_topic_with_another_number_of_replicas_in_sync_is_not_as_planned(
    workspace: Callable[[str], Workspace], one_broker: BrokerCluster
) -> None:
    with Admin(one_broker.bootstrap) as admin:
        admin.create_topic("theirs", 1, 1, {"min.insync.replicas": "2"})
    try:
        folder = workspace(TOPIC.format(servers=one_broker.bootstrap, least=1))
        shown = " ".join(folder.plan(code=1).split())
        assert "Another topic theirs already exists" in shown and "min.insync.replicas" in shown, shown
        folder.write(TOPIC.format(servers=one_broker.bootstrap, least=2))
        assert "Terraform adopts it" in folder.apply()
        folder.plan(code=0)
    finally:
        with Admin(one_broker.bootstrap) as admin:
            admin.delete_topic("theirs")
