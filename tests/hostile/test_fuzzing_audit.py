"""What the fuzzer writes to `_audit`: its impossible records are never believed, most possible ones are."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from fuzzing import audited
from fuzzing.audit_records import KINDS, Place
from fuzzing.audit_values import ValueMaker, impossible
from fuzzing.avro import AvroWriter, changed_schema, tower
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.decoding import AuditDecoder, NotAnAuditRecordError
from headrace.audit.topic.possible import ImpossibleRecordError
from headrace.audit.topic.validity import check
from headrace.events.schemas import read_schema
from headrace.registry.errors import RegistryError
from headrace.registry.framing import prefix

NOW_MS = 1_790_000_000_000
TEXTS = {name: read_schema(name) for name in KINDS}
IDS = {name: number for number, name in enumerate(KINDS)}
SCHEMAS = {name: json.loads(text) for name, text in TEXTS.items()}
PLACE = Place(audited.TOPIC, "fuzz", "fuzz", NOW_MS)


class Registry:
    """The schemas by id."""

    def __init__(self) -> None:
        self.texts = {IDS[name]: text for name, text in TEXTS.items()}

    def get_by_id(self, schema_id: int) -> str:
        if schema_id not in self.texts:
            raise RegistryError(40403, "Schema not found")
        return self.texts[schema_id]


def is_believed(decoder: AuditDecoder, value: bytes) -> bool:
    try:
        check(decoder.decode(value), NOW_MS)
    except (NotAnAuditRecordError, ImpossibleRecordError):
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_records_that_lie_are_not_believed_and_others_are(kind: str) -> None:
    rng, decoder = random.Random(7), AuditDecoder(Registry())  # type: ignore[arg-type]
    stranger = Place("strange-a", "strange", "strange", NOW_MS)
    seen: Counter[str] = Counter()
    for _ in range(60):
        lying = AvroWriter(rng, SCHEMAS[kind], 0).write(impossible(rng, kind, PLACE))
        assert not is_believed(decoder, prefix(IDS[kind]) + lying)
        tree = {"header": stranger.header(), **KINDS[kind](rng, stranger)}
        written = prefix(IDS[kind]) + AvroWriter(rng, SCHEMAS[kind], 0).write(tree)
        seen["believed" if is_believed(decoder, written) else "not"] += 1
    assert seen["believed"] > 20, seen


def test_a_store_lives_with_what_is_believed_of_them() -> None:
    rng, registry = random.Random(7), Registry()
    decoder = AuditDecoder(registry)  # type: ignore[arg-type]
    values = ValueMaker(SCHEMAS, IDS, PLACE, [b"honest"])
    store = AuditStore("sqlite://")
    believed = []
    for number in range(150):
        value = values.value(rng)
        if number % 3 == 0:
            text = changed_schema(rng, TEXTS[rng.choice(list(KINDS))])
            registry.texts[1000 + number] = text
            body = tower(rng) if number % 2 else AvroWriter(rng, json.loads(text)).write()
            value = prefix(1000 + number) + body
        if is_believed(decoder, value):
            believed.append(decoder.decode(value))
    assert 10 < len(believed) < 100
    store.fold([each for each in believed if not store.refuses(each)])
    json.dumps(report(store, now_ms=NOW_MS).to_json())
    store.close()
