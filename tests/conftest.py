"""Which fixtures exist: one file a thing, tests/fix_<thing>.py."""

import pytest

pytest_plugins = [
    "fix_audit",
    "fix_broker",
    "fix_client",
    "fix_clients",
    "fix_datacenter",
    "fix_fake_log",
    "fix_hdfs",
    "fix_java",
    "fix_kafka",
    "fix_registry",
    "fix_site",
    "fix_spark",
    "fix_warehouse",
    "fix_zookeeper",
]
# They may import one another, before pytest would come to rewrite their assertions.
pytest.register_assert_rewrite(*pytest_plugins)
