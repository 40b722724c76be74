"""A null in a map, as `cond ? value : null` leaves it: it counts as not there. Real terraform."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_broker import BrokerCluster
from fix_terraform import Workspace
from headrace.client.admin import Admin

Make = Callable[[str], Workspace]
TOPIC = """
resource "headrace_topic" "t" {{
  bootstrap_servers  = ["{servers}"]
  name               = "nulls"
  partitions         = 1
  replication_factor = 1
  config             = {{ "retention.ms" = {retention}, "segment.bytes" = 1048576 }}
  allow_data_loss    = true
}}
"""


@pytest.mark.slow
def test_a_null_setting_is_the_brokers_default_and_the_next_plan_is_empty(
    workspace: Make, one_broker: BrokerCluster
) -> None:
    def own_settings() -> set[str]:
        with Admin(one_broker.bootstrap) as admin:
            return {entry.name for entry in admin.describe_configs("nulls").values() if entry.is_own}

    def hcl(retention: str) -> str:
        return TOPIC.format(servers=one_broker.bootstrap, retention=retention)

    folder = workspace(hcl("null"))
    folder.apply()
    try:
        assert own_settings() == {"segment.bytes"}
        folder.plan(code=0)
        folder.write(hcl("86400000"))
        folder.apply()
        assert own_settings() == {"segment.bytes", "retention.ms"}
        folder.write(hcl("null"))
        folder.apply()
        assert own_settings() == {"segment.bytes"}
        folder.plan(code=0)
        with Admin(one_broker.bootstrap) as admin:
            admin.alter_configs("nulls", {"retention.ms": "5000000"})
        assert '"retention.ms" = "5000000" -> null' in " ".join(folder.plan().split())
        folder.apply()
        assert own_settings() == {"segment.bytes"}
    finally:
        folder.run("destroy", "-auto-approve")
