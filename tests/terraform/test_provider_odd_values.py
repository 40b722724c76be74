"""Values that HCL can hold and nothing behind it: refused at their line, with the bound. Real terraform."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from fix_terraform import Workspace

Make = Callable[[str], Workspace]
TOPIC = """
resource "headrace_topic" "t" {{
  bootstrap_servers = ["127.0.0.1:1"]
  name = "t"
  partitions = {partitions}
  {line}
}}
"""
BROKER = """
resource "headrace_broker" "b" {{
  host = "local"
  name = "b"
  datacenter = "east"
  broker_id = 1
  zookeeper = "{zookeeper}"
  {line}
}}
"""


def topic(line: str = "", partitions: str = "1") -> str:
    return TOPIC.format(line=line, partitions=partitions)


def broker(line: str = "", zookeeper: str = "127.0.0.1:2181") -> str:
    return BROKER.format(line=line, zookeeper=zookeeper)


def load(line: str) -> str:
    return f'resource "headrace_load" "l" {{\n  host = "local"\n  topic = "t"\n  owner = "o"\n  {line}\n}}'


@pytest.mark.parametrize(
    ("hcl", "line", "message"),
    [
        (topic(partitions="1e30"), "partitions = 1e30", "a whole number, 1 or more, at most 2,147,483,647."),
        (topic(partitions="1e5000"), "partitions = 1e5000", "(5001 digits); expected a whole number"),
        (topic("min_insync_replicas = -1e5000"), "min_insync_replicas = -1e5000", "1 or more."),
        (
            broker("broker_id = -1e5000").replace("broker_id = 1\n", ""),
            "broker_id = -1e5000",
            "finite number",
        ),
        (load("completeness = 1e5000"), "completeness = 1e5000", "is not a share above 0"),
        (topic("replication_factor = 1e5"), "replication_factor = 1e5", "1 or more, at most 32,767."),
        (
            topic("replication_throttle = 1e20"),
            "replication_throttle = 1e20",
            "at most 9,223,372,036,854,775",
        ),
        (
            topic("replication_timeout_s = 1e400"),
            "replication_timeout_s = 1e400",
            "(401 digits); expected sec",
        ),
        (topic("replication_timeout_s = -1"), "replication_timeout_s = -1", "expected seconds, 0 or more."),
        (broker("drain_timeout_s = 1e400"), "drain_timeout_s = 1e400", "0 or more, at most 10,000,000."),
        (
            broker(zookeeper="127.0.0.1:2181/a/../b"),
            'zookeeper = "127.0.0.1:2181/a/../b"',
            "should match patt",
        ),
    ],
)
def test_it_is_named_with_its_bound(workspace: Make, hcl: str, line: str, message: str) -> None:
    output = workspace(hcl).run("plan", code=1).replace("│", " ")
    shown = " ".join(output.split())
    assert re.search(rf"on main\.tf line \d+, .*: {re.escape(line)} .*{re.escape(message)}", shown), output
    assert "bug in headrace" not in output and "Plugin error" not in output


ADDRESSES = ("127.0.0.1:99999", "127.0.0.1:0", "a..b:1", "127.0.0.1:１")
URLS = ("http://127.0.0.1:port", "http://[::1", "http://", "http://127.0.0.1:99999")


def schema(name: str, url: str, text: str = '"string"') -> str:
    quoted = text.replace('"', '\\"')
    return (
        f'resource "headrace_schema" "{name}" {{\n  registry_url = "{url}"\n  subject = "s"\n'
        f'  schema = "{quoted}"\n}}\n'
    )


def test_addresses_that_no_client_takes_are_named(workspace: Make) -> None:
    """Each was a bug of the provider: what it checked was less than what its clients check."""
    servers = ", ".join(f'"{each}"' for each in ADDRESSES)
    hcl = topic().replace('["127.0.0.1:1"]', f"[{servers}, null]")
    hcl += 'data "headrace_cluster" "c" {\n  bootstrap_servers = [null]\n}\n'
    hcl += "".join(schema(f"s{at}", url) for at, url in enumerate(URLS))
    hcl += schema("deep", "http://127.0.0.1:1", "[" * 100_000)
    folder = workspace(hcl)
    output = folder.run("plan", code=1)
    shown = " ".join(output.replace("│", " ").split())
    for each in ADDRESSES:
        assert f"Got '{each}'; expected HOST:PORT" in shown
    assert shown.count("Got null; expected HOST:PORT") == 2
    for url in URLS:
        assert f"registry_url is '{url}'; expected a URL such as" in shown
    assert "It is not JSON: maximum recursion depth exceeded" in shown
    folder.write(schema("s", "http://127.0.0.1:1"))
    for identity in ("http://127.0.0.1:port/s", "http://[::1/s"):
        output += folder.run("import", "headrace_schema.s", identity, code=1)
    assert output.count("Invalid import id") == 2
    assert "bug in headrace" not in output and "Plugin error" not in output
