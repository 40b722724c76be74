"""The audit's verdicts on a topic, as a data source.

Owns how the provider reads the audit store: an SQLAlchemy URL, on this machine or in PostgreSQL.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from headrace.audit.times import OUTSIDE_NAME, is_named
from headrace.provider.attributes import Attribute, BlockSchema
from headrace.provider.problems import Problem, ResourceError
from headrace.provider.resource import DataSource, ResourceCall
from headrace.provider.values import Values, is_known

if TYPE_CHECKING:
    from headrace.audit.report.report import Report

_COUNTS: Final = ("producer", "datacenter", "analysis", "warehouse", "dead_lettered")

SCHEMA: Final = BlockSchema(
    (
        Attribute(
            name="store",
            sensitive=True,
            description="The audit store's SQLAlchemy URL: the `store` of an auditor.",
        ),
        Attribute(name="topic", description="The topic."),
        Attribute(
            name="from_hour",
            optional=True,
            description="The first hour of event time, RFC 3339. Default: the earliest in the store.",
        ),
        Attribute(
            name="to_hour",
            optional=True,
            description="The end of the hours, exclusive, RFC 3339. Default: after the store's latest hour.",
        ),
        Attribute(
            name="status",
            computed=True,
            description="The worst of all hours: complete, pending, unknown, duplicated, altered, corrupt or "
            "lost.",
        ),
        Attribute(name="complete", type="bool", computed=True, description="Whether `status` is complete."),
        Attribute(
            name="counts",
            type=["map", "number"],
            computed=True,
            description=f"Events that each tier counted: {', '.join(_COUNTS)}.",
        ),
        Attribute(
            name="findings",
            type=["list", "string"],
            computed=True,
            description="The problems that the audit proved, one sentence each.",
        ),
        Attribute(
            name="hours",
            nesting="list",
            computed=True,
            description="The verdict on each hour and datacenter.",
            type=(
                Attribute(
                    name="hour",
                    computed=True,
                    description=f"The start of the hour, RFC 3339; or `{OUTSIDE_NAME}`.",
                ),
                Attribute(
                    name="datacenter",
                    computed=True,
                    description="The datacenter where the events were published.",
                ),
                Attribute(name="status", computed=True, description="The status of this hour."),
                Attribute(
                    name="counted_from",
                    computed=True,
                    description="producers; or log, if the topic's producers need not report: nothing is "
                    "then known about events that were lost before the log.",
                ),
                Attribute(
                    name="counts",
                    type=["map", "number"],
                    computed=True,
                    description="The events of this hour that each tier counted.",
                ),
            ),
        ),
    ),
    description="The audit's verdict on a topic: whether events were lost or duplicated, and where.",
)


def read_report(store_url: str, topic: str, from_ms: int | None = None, to_ms: int | None = None) -> Report:
    """Returns the audit's report on a topic. Raises `ResourceError` if the store cannot be read."""
    # Imported here because SQLAlchemy is slow to import, and few requests need it.
    from sqlalchemy.exc import SQLAlchemyError

    from headrace.audit.report.report import report
    from headrace.audit.store.store import AuditStore, StoreError, StoreMissingError, parsed_url, problem_of

    try:
        parsed_url(store_url)
    except StoreError as error:
        text = "Expected an SQLAlchemy URL, such as sqlite:////var/lib/headrace/audit.db."
        raise ResourceError(Problem("Not the URL of an audit store", text, ("store",))) from error
    store = None
    try:
        # A plan changes nothing there, and waits for no auditor that writes.
        store = AuditStore(store_url, must_exist=True)
        return report(store, topic, from_ms, to_ms)
    except StoreMissingError as error:
        raise _unreadable(f"{error}: is it on this machine?") from error
    except StoreError as error:
        raise _unreadable(f"{error}.") from error
    except SQLAlchemyError as error:
        raise _unreadable(f"{problem_of(error)}.") from error
    finally:
        if store is not None:
            store.close()


def _unreadable(why: str) -> ResourceError:
    return ResourceError(Problem("The audit store cannot be read", why, ("store",)))


class AuditVerdictData(DataSource):
    """The audit's verdict on a topic."""

    type_name = "audit_verdict"
    schema = SCHEMA

    def validate(self, config: Values) -> list[Problem]:
        problems = []
        for name in ("from_hour", "to_hour"):
            value = config.get(name)
            if isinstance(value, str):
                try:
                    _milliseconds(value)
                except ValueError:
                    text = f"{name} is {value!r}; expected RFC 3339, such as 2015-05-17T10:00:00Z."
                    problems.append(Problem(f"Invalid {name}", text, (name,)))
        return problems

    def read(self, call: ResourceCall, config: Values) -> Values:
        from_ms, to_ms = (
            _milliseconds(config[name]) if config.get(name) and is_known(config[name]) else None
            for name in ("from_hour", "to_hour")
        )
        report = read_report(config["store"], config["topic"], from_ms, to_ms)
        verdicts = report.verdicts
        hours = [
            {
                "hour": _hour(verdict.hour_ms),
                "datacenter": verdict.datacenter,
                "status": str(verdict.status),
                "counted_from": verdict.counted_from,
                "counts": verdict.counts._asdict(),
            }
            for verdict in verdicts
        ]
        return {
            **config,
            "status": str(report.status),
            "complete": report.status == "complete",
            "counts": {name: sum(getattr(verdict.counts, name) for verdict in verdicts) for name in _COUNTS},
            "findings": [finding.text for verdict in verdicts for finding in verdict.findings],
            "hours": hours,
        }


def _milliseconds(text: str) -> int:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return int(time.timestamp() * 1000)


def _hour(hour_ms: int) -> str:
    """Returns the hour in RFC 3339; a name for times that no calendar has."""
    if not is_named(hour_ms):
        return OUTSIDE_NAME
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=hour_ms)
    return time.isoformat().replace("+00:00", "Z")
