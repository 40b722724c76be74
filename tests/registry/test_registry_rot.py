"""A schema whose bytes have changed in ZooKeeper is never handed out: nobody would see that."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from fix_registry import StartRegistry
from fix_zookeeper import ZooKeeperServer, room_on
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.errors import RegistryError, RegistryUnavailableError
from headrace.registry.subjects import id_path

SUBJECT: Final = "page-view-value"
SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "PageView",
    "fields": [{"name": "pages", "type": "int", "default": 5}],
}


@pytest.mark.parametrize(("was", "rotten"), [("pages", "pagds"), (":5}", ":4}"), ("PageView", "QageView")])
def test_a_rotten_schema_is_not_handed_out(
    zookeeper_server: ZooKeeperServer, start_registry: StartRegistry, was: str, rotten: str
) -> None:
    room = room_on(zookeeper_server)
    with SchemaRegistryClient(start_registry(hosts=room.hosts).url) as registry:
        schema_id = registry.register(SUBJECT, SCHEMA)
    with room.session() as session:
        before = session.get(id_path(schema_id))
        assert was.encode() in before.data
        session.set(id_path(schema_id), before.data.replace(was.encode(), rotten.encode()))
    with SchemaRegistryClient(start_registry(hosts=room.hosts).url) as registry:
        asks = (
            lambda: registry.get_by_id(schema_id),
            lambda: registry.latest(SUBJECT),
            lambda: registry.register(SUBJECT, SCHEMA),
        )
        for ask in asks:
            with pytest.raises(RegistryUnavailableError, match="its bytes have changed"):
                ask()
        with room.session() as session:
            session.delete(id_path(schema_id))
        with pytest.raises(RegistryError, match="not found"):
            registry.get_by_id(schema_id)
        assert registry.register("another-value", SCHEMA) == schema_id
        assert json.loads(registry.get_by_id(schema_id)) == SCHEMA
        assert json.loads(registry.latest(SUBJECT).schema) == SCHEMA
