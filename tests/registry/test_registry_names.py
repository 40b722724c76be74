"""Names in schemas, over real registries: what Java refuses is refused, and what is registered stays."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from fix_registry import StartRegistry
from fix_zookeeper import ZooKeeperServer, room_on
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.errors import INVALID_SCHEMA, RegistryError
from headrace.registry.schemas import parse
from headrace.registry.store import SchemaStore
from headrace.registry.subjects import StoredSchema

SUBJECT: Final = "page-view-value"


def record(name: str, **others: Any) -> dict[str, Any]:
    return {"type": "record", "name": "a.R", "fields": [{"name": name, "type": "int"}], **others}


@pytest.mark.parametrize("name", ["a-b", "a.b", "1a", "a b", "٣"])
def test_a_name_that_java_does_not_read_is_refused(registry_url: str, name: str) -> None:
    """No client in Java could read an event of such a schema, and a load ended with a trace of Java's."""
    with SchemaRegistryClient(registry_url) as registry:
        for schema in (record(name), record("x", aliases=[f"b.{name.replace('.', '-')}"])):
            for ask in (registry.register, registry.check_compatibility):
                with pytest.raises(RegistryError, match="is no name for Java") as refused:
                    ask(SUBJECT, schema)
                assert refused.value.error_code == INVALID_SCHEMA
        assert registry.register(SUBJECT, record("größe_1"))


def test_a_schema_that_java_does_not_read_stays_registered(
    zookeeper_server: ZooKeeperServer, start_registry: StartRegistry
) -> None:
    """Those of before: their producers register them at each start."""
    old, room = record("a-b"), room_on(zookeeper_server)
    parsed = parse(json.dumps(old))
    with room.session() as session:
        store = SchemaStore(session)
        store.prepare()
        stored = StoredSchema(parsed.text, parsed.guid)
        store.add(SUBJECT, parsed.schema_id, stored, is_same=lambda _: True, decide=lambda _: None)
    with SchemaRegistryClient(start_registry(hosts=room.hosts).url) as registry:
        assert registry.register(SUBJECT, old) == parsed.schema_id
        assert registry.lookup(SUBJECT, old).version == 1
        assert not registry.check_compatibility(SUBJECT, old)
