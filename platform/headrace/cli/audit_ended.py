"""`headrace audit ended`: says that a datacenter is gone for good, so that later hours do not wait for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

if TYPE_CHECKING:
    from headrace.audit.store.store import AuditStore

from headrace.cli import names
from headrace.cli.audit import publisher, reading
from headrace.cli.audit_repair import StoreOption
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, note, out, plain, print_json
from headrace.cli.values import parse_span_ms

SILENT_MS: Final = 5 * 60_000
LOOK_S: Final = 0.5


class _Counted(NamedTuple):
    """A topic that a datacenter's auditor counted: its id there, and when it was counted last."""

    topic_id: str
    at_ms: int


def ended(
    datacenter: Annotated[
        str, typer.Argument(help="The datacenter that is gone.", autocompletion=names.datacenters)
    ],
    wait: Annotated[str, typer.Option("--wait", help="How long to wait for the audit to see it.")] = "1m",
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Say that a datacenter is gone for good: hours that begin from now on do not wait for its auditor.

    The hours from its auditor's last word until now stay unknown: nobody counted what was published there. If
    its auditor speaks again, hours wait for it again.
    """
    from headrace.audit import phrases
    from headrace.process.clock import now_ms

    wait_s = parse_span_ms(wait, "s", option="--wait") / 1000
    with reading(store) as opened:
        counted = _counted_in(opened, datacenter)
        last_ms = max(each.at_ms for each in counted.values())
        if last_ms > now_ms() - SILENT_MS:
            raise CommandError(
                f"{datacenter}'s auditor reported at {phrases.instant(last_ms)}: it runs. Delete the topics "
                f"of {datacenter}, and stop its auditor; say that it ended five minutes later"
            )
        _tell(opened, datacenter, counted, time.monotonic() + wait_s)
    if json:
        told = sorted(topic for topic, each in counted.items() if each.topic_id)
        print_json({"datacenter": datacenter, "topics": told, "last_ms": last_ms})
        return
    for topic, each in sorted(counted.items()):
        if each.topic_id:
            out.print(f"ended  {plain(topic)}, which was counted last at {phrases.instant(each.at_ms)}")
        else:
            problem = f"the audit does not know its id in {plain(datacenter)}"
            note(f"{plain(topic)} is waited for as before: {problem}")
    out.print(f"hours that begin from now on do not wait for {plain(datacenter)}")


def _counted_in(store: AuditStore, datacenter: str) -> dict[str, _Counted]:
    """Returns the topics that a datacenter's auditor counted, by name, each as it was named last. Raises
    `CommandError` if there is none.
    """
    from sqlalchemy import select

    from headrace.audit.store import tables
    from headrace.audit.topic.records import DATACENTER_TIER

    beats = tables.beats
    query = select(beats.c.datacenter, beats.c.topic, beats.c.topic_id, beats.c.at_ms)
    found: dict[str, dict[str, _Counted]] = {}
    with store.reading() as connection:
        for row in connection.execute(query.where(beats.c.tier == DATACENTER_TIER)):
            counted = found.setdefault(row.datacenter, {})
            if row.topic not in counted or counted[row.topic].at_ms < row.at_ms:
                counted[row.topic] = _Counted(row.topic_id, row.at_ms)
    if datacenter not in found:
        known = ", ".join(sorted(found)) or "none"
        raise CommandError(
            f"no auditor of a datacenter {datacenter} was ever heard of, but of these: {known}",
            ExitCode.USAGE,
        )
    return found[datacenter]


def _tell(store: AuditStore, datacenter: str, counted: Mapping[str, _Counted], deadline_s: float) -> None:
    """Publishes that the topics are deleted there, and waits until the store knows. Raises `CommandError`."""
    from headrace.audit.gathering.topics import deletions_of
    from headrace.audit.topic.declarations import TopicDeclaration

    def waiting() -> list[str]:
        with store.reading() as connection:
            return [
                topic
                for topic, each in sorted(counted.items())
                if each.topic_id and (datacenter, each.topic_id) not in deletions_of(connection, topic)
            ]

    topics = waiting()
    with publisher("ended", speaks_for=datacenter) as says:
        for topic in topics:
            says.publish(TopicDeclaration(topic, counted[topic].topic_id, (), deleted=True))
        says.flush()
    while topics := waiting():
        if time.monotonic() >= deadline_s:
            raise CommandError(
                f"the audit does not know yet that {datacenter} ended ({topics[0]}): is the auditor of the "
                "analysis datacenter running?",
                ExitCode.UNREACHABLE,
            )
        time.sleep(LOOK_S)
