"""Records of strangers in `_audit`, between honest ones: the auditor counts on, and no proven hour changes.

Strangers register schemas, too, that look like the audit's own. Meanwhile an honest service publishes one
more hour, which must be counted like any other; in some rounds the auditor is killed, and reads all of it
again.
"""

from __future__ import annotations

import json
import random
import threading
import time
from typing import Any, Final

import httpx

from fix_broker import RawClient
from fuzzing import audited, honest
from fuzzing.audit_records import KINDS, Place
from fuzzing.audit_values import ValueMaker
from fuzzing.avro import AvroWriter, changed_schema, tower
from fuzzing.values import mutate
from fuzzing.world import World
from headrace.audit.topic.records import AUDIT_TOPIC
from headrace.events.schemas import read_schema
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.framing import prefix
from headrace.registry.serializers import record_name_subject
from headrace.wire.compression import Codec
from headrace.wire.records import Record, encode_batch

VALUES: Final = 400
VALUES_PER_BATCH: Final = 25
SCHEMAS: Final = 8
VALUES_PER_SCHEMA: Final = 4
BATCH_MAX_BYTES: Final = 900_000
ANSWER_MAX_S: Final = 30.0
KILLED: Final = 0.3
"""How often the auditor is killed within a round."""
PRINTED: Final = 0.3
"""How often the report for people is printed, too."""
SHOWN_BYTES: Final = 2_000


class Hour(threading.Thread):
    """An honest service that publishes one more hour while strangers write."""

    def __init__(self, hours: audited.AuditedHours) -> None:
        super().__init__(daemon=True)
        self._hours = hours
        self.number = -1

    def run(self) -> None:
        self.number = self._hours.publish_hour()

    def published(self) -> int:
        """Waits; returns the hour's number."""
        self.join(audited.WAIT_MAX_S)
        assert self.number >= 0, "an honest service could not publish its hour"
        return self.number


def run(world: World, rng: random.Random) -> list[str]:
    """Returns the last values in hex."""
    hours = world.audited()
    hours.ensure_audit_topic()
    values = _values(world, rng, hours)
    rng.shuffle(values)
    hour = Hour(hours)
    kill_at = rng.randrange(len(values)) if rng.random() < KILLED else None
    accepted = 0
    with RawClient(world.address) as client:
        for at in range(0, len(values), VALUES_PER_BATCH):
            batch = values[at : at + VALUES_PER_BATCH]
            accepted += sum(_produce(client, rng, piece) for piece in _pieces(batch))
            if at == 0:
                hour.start()
            if kill_at is not None and at <= kill_at < at + VALUES_PER_BATCH:
                hours.auditor.kill()
                hours.auditor.start()
    assert accepted > VALUES // 2, f"only {accepted} of {len(values)} values were stored"
    number = hour.published()
    hours.wait_until_folded()
    hours.wait_until_counted(number)
    hours.wait_until_counting(honest.TOPIC)
    hours.check()
    if rng.random() < PRINTED:
        hours.print_report()
    return [value[:SHOWN_BYTES].hex() for value in values[-20:]]


def _values(world: World, rng: random.Random, hours: audited.AuditedHours) -> list[bytes]:
    texts = {file: read_schema(file) for file in KINDS}
    with SchemaRegistryClient(hours.registry_url) as registry:
        ids = {file: registry.register(record_name_subject("", text), text) for file, text in texts.items()}
    schemas: dict[str, Any] = {file: json.loads(text) for file, text in texts.items()}
    place = Place(audited.TOPIC, world.datacenter, world.datacenter, int(time.time() * 1000))
    maker = ValueMaker(schemas, ids, place, hours.values)
    values = [maker.value(rng) for _ in range(VALUES)]
    if rng.random() < 0.3:
        values += maker.flood(rng)
    if rng.random() < 0.3:
        values += maker.unknown_ids(rng)
    for _ in range(SCHEMAS):
        values += _of_a_strange_schema(rng, hours.registry_url, texts[rng.choice(list(KINDS))])
    return values


def _of_a_strange_schema(rng: random.Random, registry_url: str, text: str) -> list[bytes]:
    """Registers a changed schema, if the registry takes it, and writes values with its id."""
    changed = changed_schema(rng, text)
    url = f"{registry_url}/subjects/stranger-{rng.randrange(1 << 32)}/versions"
    answer = httpx.post(url, content=json.dumps({"schema": changed}), timeout=ANSWER_MAX_S)
    assert answer.status_code < 500, f"{answer.status_code} {answer.text[:300]} for {changed}"
    if answer.status_code != 200:
        return []
    made = []
    for _ in range(VALUES_PER_SCHEMA):
        form = rng.random()
        body = tower(rng) if form < 0.3 else AvroWriter(rng, json.loads(changed)).write()
        made.append(prefix(answer.json()["id"]) + (mutate(rng, body) if form > 0.8 else body))
    return made


def _pieces(values: list[bytes]) -> list[list[bytes]]:
    """The values in lists that fit a batch each."""
    pieces: list[list[bytes]] = [[]]
    for value in values:
        if pieces[-1] and sum(map(len, pieces[-1])) + len(value) > BATCH_MAX_BYTES:
            pieces.append([])
        pieces[-1].append(value)
    return pieces


def _produce(client: RawClient, rng: random.Random, values: list[bytes]) -> int:
    """Returns how many of the values were stored: all or none."""
    now_ms = int(time.time() * 1000)
    key = rng.choice((None, b"", b"stranger"))
    records = [
        Record(0, rng.choice((now_ms, now_ms, now_ms - 86_400_000, 0)), key, value or None)
        for value in values
    ]
    codec = rng.choice((Codec.NONE, Codec.ZSTD, Codec.GZIP))
    result = client.produce(AUDIT_TOPIC, 0, encode_batch(records, codec=codec))
    return len(values) if result.error_code == 0 else 0
