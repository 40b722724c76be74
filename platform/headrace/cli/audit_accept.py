"""`headrace audit accept`: accepts by name, and for good, what is lost and nowhere any more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.audit.store.store import AuditStore

from headrace.cli.audit import publisher, reading, show
from headrace.cli.audit_repair import (
    HourOption,
    StoreOption,
    TopicArgument,
    hour_start,
    report_of,
)
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption
from headrace.cli.values import parse_span_ms


def accept(
    topic: TopicArgument,
    hour: HourOption,
    reason: Annotated[str, typer.Option("--reason", help="Why nothing more can be done, for every reader.")],
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Take back what was accepted of these hours.")
    ] = False,
    wait: Annotated[str, typer.Option("--wait", help="How long to wait for the audit to see it.")] = "1m",
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Accept what is lost, duplicated, altered or corrupt in an hour, and stays so: by name, for good.

    The report shows the acceptance, its author and the reason from then on, and a seal may go on with it. It
    covers the findings of now: if something else is lost in the same hour, the hour is lost again.
    """
    from headrace.audit.repair.repairing import author, judged, wait_until
    from headrace.audit.topic.acceptances import AcceptanceRecord

    if not reason.strip():
        raise CommandError("--reason is empty: say why nothing more can be done", ExitCode.USAGE)
    hours_ms, wait_s = [hour_start(text) for text in hour], parse_span_ms(wait, "s", option="--wait") / 1000
    with reading(store) as opened:
        named = {hour_ms: _named(opened, topic, hour_ms, withdraw=withdraw) for hour_ms in hours_ms}
        if not any(named.values()):
            what = "accepted" if withdraw else "lost, duplicated, altered or corrupt"
            raise CommandError(f"nothing is {what} in these hours of {topic}")
        with publisher("repair") as says:
            for hour_ms, found in named.items():
                for some in _pieces(found):
                    record = AcceptanceRecord(
                        topic, hour_ms, tuple(some), tuple(some.values()), author(), reason.strip(), withdraw
                    )
                    says.publish(record)
            says.flush()
        digests = {digest for found in named.values() for digest in found}

        def is_seen(_: object) -> bool:
            return all(
                digests.isdisjoint(_named(opened, topic, hour_ms, withdraw=withdraw)) for hour_ms in hours_ms
            )

        wait_until(lambda: judged(opened, topic, hours_ms), is_seen, wait_s)
        report = report_of(opened, topic, hours_ms)
    show(report, json=json)


def _named(store: AuditStore, topic: str, hour_ms: int, *, withdraw: bool) -> dict[str, str]:
    """Returns digest → sentence of the hour's findings to accept, or of those that are accepted."""
    from headrace.audit.repair.repairing import judged
    from headrace.audit.topic.acceptances import acceptable, digests_of

    found: dict[str, str] = {}
    for _, verdict in judged(store, topic, [hour_ms]):
        if withdraw:
            place = (verdict.topic, verdict.datacenter, verdict.hour_ms)
            for each in verdict.accepted:
                found |= dict.fromkeys(digests_of(*place, each.finding), each.finding.text)
        else:
            found.update((digest, finding.text) for digest, finding in acceptable(verdict).items())
    return found


def _pieces(found: dict[str, str]) -> Iterable[dict[str, str]]:
    from headrace.audit.topic.acceptances import FINDINGS_PER_RECORD_MAX

    digests = list(found)
    for start in range(0, len(digests), FINDINGS_PER_RECORD_MAX):
        yield {digest: found[digest] for digest in digests[start : start + FINDINGS_PER_RECORD_MAX]}
