"""What keeps a ZooKeeper from being destroyed: topics and schemas, also below paths of it, as `zookeeper =
"HOST:PORT/east"` says.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fix_terraform import VENV
from fix_zookeeper import ZooKeeperRoom
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry
from headrace.registry.store import SchemaStore
from headrace.registry.subjects import StoredSchema, Subject

# The provider's plan of a deletion. It prints what the plan refuses it for.
PLAN = """
import json, sys, threading
from headrace.provider.problems import ResourceError
from headrace.provider.resource import Context, ResourceCall
from headrace.provider.schemas import SchemaResource
from headrace.provider.units import RegistryResource, ZooKeeperResource

asked = json.loads(sys.argv[1])
prior = {"name": "zk", "host": "local", "allow_data_loss": False, "listen": asked["listen"]}
context = Context()
context.deleted_topics |= set(asked["topics"])
for subject in asked["schemas"]:
    SchemaResource(context).plan_deletion(ResourceCall(threading.Event()), {"subject": subject})
for sources in ([], ["west=http://127.0.0.1:1"]) if asked["copies"] else ():
    registry = {"zookeeper": asked["copies"], "sources": sources}
    RegistryResource(context).plan_deletion(ResourceCall(threading.Event()), registry)
try:
    ZooKeeperResource(context).plan_deletion(ResourceCall(threading.Event()), prior)
except ResourceError as error:
    print(json.dumps([f"{each.summary}. {each.detail}" for each in error.problems]))
else:
    print("[]")
"""


def refusals(
    listen: str, *deleted: uuid.UUID, schemas: Sequence[str] = (), copies: str | None = None
) -> list[str]:
    """What the plan says. It also deletes these topics and subjects, and a registry that `copies` there."""
    topics = [str(each) for each in deleted]
    asked = {"listen": listen, "topics": topics, "schemas": list(schemas), "copies": copies}
    command = [str(VENV / "bin" / "python"), "-c", PLAN, json.dumps(asked)]
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


@pytest.mark.parametrize("chroot", ["", "/schemas"])
def test_a_zookeeper_with_schemas_alone_is_not_destroyed(
    terraform: None, private_zookeeper: ZooKeeperRoom, chroot: str
) -> None:
    """Its topics are deleted, and events that were copied or loaded still need their schemas."""
    listen = private_zookeeper.server.address
    with ZooKeeperSession(listen) as session:
        session.ensure_path(chroot or "/")
    with ZooKeeperSession(listen + chroot) as session:
        store = SchemaStore(session)
        store.prepare()
        add(store, "headrace.audit.Gap", 7)
        assert refusals(listen) == [], "each installation makes headrace's own again"
        add(store, "page-view-value", 8)
        (problem,) = refusals(listen)
        assert problem.startswith("ZooKeeper zk holds the schemas of 1 subject.")
        assert "page-view-value" + (f" (in {chroot})" if chroot else "") in problem
        assert refusals(listen, schemas=["page-view-value"]) == []  # the same plan deletes it
        assert refusals(listen, copies=listen + chroot) == []  # and its registry, which copies others
        for name in ("page-view-value", "headrace.audit.Gap"):
            store.change(name, soft_deleted)
    assert refusals(listen) == []


def add(store: SchemaStore, subject: str, schema_id: int) -> None:
    store.add(subject, schema_id, StoredSchema('"long"'), is_same=bool, decide=lambda found: None)


def soft_deleted(subject: Subject) -> Subject:
    return replace(subject, versions=tuple(each._replace(deleted=True) for each in subject.versions))
