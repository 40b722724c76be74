"""Folding what people, repairs and tests say: events that were brought again, findings that are accepted,
what verifications found.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from sqlalchemy import Connection

from headrace.audit.store import measured_tables, tables
from headrace.audit.store.inserting import insert_new, upsert
from headrace.audit.topic.acceptances import AcceptanceRecord
from headrace.audit.topic.doubled import DoubledRecord
from headrace.audit.topic.drills import DrillRecord
from headrace.audit.topic.resent import ResentRecord
from headrace.audit.topic.said_of_tables import VerifiedRecord
from headrace.audit.topic.tested import TestedRecord


def fold_resent(connection: Connection, resent: ResentRecord, time_ms: int) -> None:
    """Keeps which new numbers stand for which old ones; their publisher's claims then move."""
    upsert(connection, tables.resent, [{**asdict(resent), "said_ms": time_ms}], newer_by="said_ms")
    owner = {
        "datacenter": resent.datacenter,
        "producer_id": resent.producer_id,
        "publisher": resent.publisher,
    }
    insert_new(connection, tables.producer_ids, owner)


def fold_acceptance(connection: Connection, acceptance: AcceptanceRecord, time_ms: int) -> None:
    """Keeps the newest word about each accepted finding."""
    said = {
        "topic": acceptance.topic,
        "hour_ms": acceptance.hour_ms,
        "said_by": acceptance.said_by,
        "said_ms": time_ms,
        "reason": acceptance.reason,
        "withdrawn": acceptance.withdrawn,
    }
    rows = [
        {**said, "digest": digest, "sentence": sentence}
        for digest, sentence in zip(acceptance.digests, acceptance.texts, strict=True)
    ]
    upsert(connection, tables.acceptances, rows, newer_by="said_ms")


def fold_tested(connection: Connection, record: TestedRecord, time_ms: int) -> None:
    """Folds what a verification or a comparison of guids found, or how a drill ended."""
    if isinstance(record, VerifiedRecord):
        _fold_verified(connection, record, time_ms)
    elif isinstance(record, DrillRecord):
        _fold_drill(connection, record, time_ms)
    else:
        _fold_doubled(connection, record, time_ms)


def _fold_verified(connection: Connection, verified: VerifiedRecord, time_ms: int) -> None:
    """Keeps the newest verification of each table."""
    problems = json.dumps(verified.problems)
    row = {**asdict(verified), "problems": problems, "said_ms": time_ms}
    upsert(connection, measured_tables.verified, [row], newer_by="said_ms")


def _fold_drill(connection: Connection, drill: DrillRecord, time_ms: int) -> None:
    """Keeps the first word about each drill: a later one of the same name is somebody else's."""
    plants = json.dumps([each.to_json() for each in drill.plants])
    row = {**asdict(drill), "plants": plants, "said_ms": time_ms}
    insert_new(connection, measured_tables.drills, row)


def _fold_doubled(connection: Connection, doubled: DoubledRecord, time_ms: int) -> None:
    """Keeps which rows are there more than once, and whether a dedupe removed the extra ones."""
    hour = {"warehouse": doubled.warehouse, "topic": doubled.topic, "hour_ms": doubled.hour_ms}
    rows = [{**hour, **run._asdict(), "said_ms": time_ms} for run in doubled.runs]
    upsert(connection, measured_tables.doubled, rows, newer_by="said_ms")
    if doubled.removed:
        row = {**hour, "removed": doubled.removed, "said_ms": time_ms}
        upsert(connection, measured_tables.deduped, [row], newer_by="said_ms")
