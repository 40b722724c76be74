"""The audit's verdicts, as a data source, and for who asks what is not in HDFS yet.

Owns the reading of the audit store from here: an SQLAlchemy URL, on this machine or in PostgreSQL.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.provider.attributes import Attribute, Schema
from headrace.provider.resource import Call, DataSource
from headrace.provider.values import (
    ResourceError,
    Trouble,
    Values,
    is_known,
)

if TYPE_CHECKING:
    from headrace.audit.report import Report

_COUNTS: Final = ("producer", "datacenter", "analysis", "warehouse", "dead_lettered")

SCHEMA: Final = Schema(
    (
        Attribute(
            name="store",
            sensitive=True,
            description="The audit store, an SQLAlchemy URL: an auditor's `store`.",
        ),
        Attribute(name="topic", description="The topic."),
        Attribute(
            name="from_hour",
            optional=True,
            description="The first hour of event time, RFC 3339; left out, all.",
        ),
        Attribute(name="to_hour", optional=True, description="The hour to end before; left out, all."),
        Attribute(
            name="status",
            computed=True,
            description="complete, pending, unknown, duplicated or lost: the worst.",
        ),
        Attribute(name="complete", type="bool", computed=True, description="Whether nothing is missing."),
        Attribute(
            name="counts",
            type=["map", "number"],
            computed=True,
            description=f"Events as each tier counted them: {', '.join(_COUNTS)}.",
        ),
        Attribute(
            name="findings",
            type=["list", "string"],
            computed=True,
            description="What is wrong, in sentences.",
        ),
        Attribute(
            name="hours",
            nesting="list",
            computed=True,
            description="Each hour of each datacenter that has the topic.",
            type=(
                Attribute(name="hour", computed=True, description="Its start, RFC 3339."),
                Attribute(name="datacenter", computed=True, description="Where the events were published."),
                Attribute(name="status", computed=True, description="As above, of this hour."),
                Attribute(
                    name="counts",
                    type=["map", "number"],
                    computed=True,
                    description="As above, of this hour.",
                ),
            ),
        ),
    ),
    description="What the audit says of a topic: was anything lost, and where.",
)


def reported(store_url: str, topic: str, from_ms: int | None = None, to_ms: int | None = None) -> Report:
    """The audit's report. Raises `ResourceError` where there is no store."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    from headrace.audit.report import report
    from headrace.audit.store import AuditStore, StoreError

    try:
        url = make_url(store_url)
        # A store that is not there would be made, and know nothing.
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
            raise StoreError(f"there is no audit store {url}: the file is not on this machine")
        store = AuditStore(store_url)
    except (ArgumentError, NoSuchModuleError) as error:
        text = "Expected an SQLAlchemy URL, such as sqlite:////var/lib/headrace/audit.db."
        raise ResourceError(Trouble("This is no audit store", text, ("store",))) from error
    except StoreError as error:
        raise ResourceError(Trouble("The audit store cannot be read", f"{error}.", ("store",))) from error
    try:
        return report(store, topic, from_ms, to_ms)
    finally:
        store.close()


class AuditVerdict(DataSource):
    """The verdicts on a topic."""

    type_name = "audit_verdict"

    @classmethod
    def get_schema(cls) -> Schema:
        return SCHEMA

    def validate(self, config: Values) -> list[Trouble]:
        troubles = []
        for name in ("from_hour", "to_hour"):
            value = config.get(name)
            if isinstance(value, str):
                try:
                    _milliseconds(value)
                except ValueError:
                    text = f"It says {value!r}; expected RFC 3339, such as 2015-05-17T10:00:00Z."
                    troubles.append(Trouble("This is no hour", text, (name,)))
        return troubles

    def read(self, call: Call, config: Values) -> Values:
        from_ms, to_ms = (
            _milliseconds(config[name]) if config.get(name) and is_known(config[name]) else None
            for name in ("from_hour", "to_hour")
        )
        report = reported(config["store"], config["topic"], from_ms, to_ms)
        hours = [
            {
                "hour": _hour(each.hour_ms),
                "datacenter": each.datacenter,
                "status": str(each.status),
                "counts": each.counts._asdict(),
            }
            for each in report.verdicts
        ]
        return {
            **config,
            "status": str(report.status),
            "complete": report.status == "complete",
            "counts": {name: sum(getattr(each.counts, name) for each in report.verdicts) for name in _COUNTS},
            "findings": [finding.text for each in report.verdicts for finding in each.findings],
            "hours": hours,
        }


def _milliseconds(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _hour(hour_ms: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=hour_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
