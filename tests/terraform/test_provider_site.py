"""The real terraform on a whole site: HDFS with files and a ZooKeeper with topics are not deleted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fix_site import RunningSite
from fix_terraform import Workspace
from headrace.client import Admin
from headrace.warehouse.hdfs.client import HdfsClient

pytestmark = pytest.mark.slow

FILE = "/kept/by/terraform"
TOPIC = "0-kept-by-terraform"  # the message lists the first few topics


@contextmanager
def data_in(site: RunningSite) -> Iterator[None]:
    """A file of 4,321 bytes in HDFS, and a topic in east."""
    with HdfsClient(site.site.webhdfs_url) as hdfs, Admin(site.site.datacenter("east").bootstrap) as admin:
        hdfs.write(FILE, b"x" * 4_321)
        admin.create_topic(TOPIC, 1)
        try:
            yield
        finally:
            admin.delete_topic(TOPIC)
            hdfs.delete(FILE)


def test_hdfs_with_files_and_a_zookeeper_with_topics_are_not_destroyed(
    workspace: Callable[[str], Workspace], running_site: RunningSite
) -> None:
    site = running_site.site
    folder = workspace(
        f"""
provider "headrace" {{
  home = "{site.home}"
}}

resource "headrace_warehouse" "analysis" {{
  host        = "local"
  name        = "analysis-hdfs"
  datacenter  = "analysis"
  listen_host = "{site.namenode.host}"
}}

resource "headrace_zookeeper" "east" {{
  host       = "local"
  name       = "east-zookeeper"
  datacenter = "east"
  listen     = "{site.datacenter("east").zookeeper}"
}}
"""
    )
    folder.run("import", "headrace_warehouse.analysis", "local/analysis-hdfs")
    folder.run("import", "headrace_zookeeper.east", "local/east-zookeeper")
    pids = [running_site.pid(name) for name in ("analysis-hdfs", "east-zookeeper")]
    with data_in(running_site):
        output = " ".join(folder.run("destroy", "-auto-approve", code=1).split())
    assert "Warehouse analysis-hdfs holds data" in output
    assert "of HDFS. To delete it anyway, set allow_data_loss = true" in output
    assert "ZooKeeper east-zookeeper holds the registry of" in output
    assert TOPIC in output
    assert [running_site.pid(name) for name in ("analysis-hdfs", "east-zookeeper")] == pids
