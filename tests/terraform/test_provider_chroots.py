"""A ZooKeeper whose clusters live below paths of it, as `zookeeper = "HOST:PORT/east"` says."""

from __future__ import annotations

import json
import subprocess
import uuid

import pytest

from fix_terraform import VENV
from fix_zookeeper import ZooKeeperRoom
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry

# The provider's plan of a deletion. It prints what the plan refuses it for.
PLAN = """
import json, sys, threading
from headrace.provider.problems import ResourceError
from headrace.provider.resource import Context, ResourceCall
from headrace.provider.units import ZooKeeperResource

prior = {"name": "zk", "host": "local", "allow_data_loss": False, "listen": sys.argv[1]}
context = Context()
context.deleted_topics |= set(sys.argv[2:])
try:
    ZooKeeperResource(context).plan_deletion(ResourceCall(threading.Event()), prior)
except ResourceError as error:
    print(json.dumps([f"{each.summary}. {each.detail}" for each in error.problems]))
else:
    print("[]")
"""


def refusals(listen: str, *deleted: uuid.UUID) -> list[str]:
    command = [str(VENV / "bin" / "python"), "-c", PLAN, listen, *map(str, deleted)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("chroot", ["/east", "/headrace", "/clusters/config"])
def test_a_zookeeper_with_topics_below_a_path_is_not_destroyed(
    terraform: None, private_zookeeper: ZooKeeperRoom, chroot: str
) -> None:
    listen = private_zookeeper.server.address
    assert refusals(listen) == []
    with ZooKeeperSession(listen) as session:
        session.ensure_path(chroot)
    topic_id = uuid.uuid4()
    with ZooKeeperSession(listen + chroot) as session:
        TopicRegistry(session).create("clicks", topic_id, {0: (1,)})
    (problem,) = refusals(listen)
    assert problem.startswith("ZooKeeper zk holds the registry of 1 topic.")
    assert f"clicks (in {chroot})" in problem
    assert refusals(listen, topic_id) == []  # the same plan deletes it
