"""`headrace audit accept`: accepts by name, and for good, what is lost for ever, or unknown and stays so."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.audit.store.store import AuditStore

from headrace.cli.audit import check_topic, publisher, reading, show
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
    unknown: Annotated[
        bool,
        typer.Option(
            "--unknown",
            help="Accept also what is unknown and stays so, such as what a host that is gone never reported.",
        ),
    ] = False,
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

    With --unknown, what is unknown is covered, too. What a load, a mirror or an auditor can still tell should
    be awaited instead: if it tells of a loss, the hour is lost again.
    """
    from headrace.audit.repair.repairing import author, judged, wait_until
    from headrace.audit.topic.acceptances import AcceptanceRecord

    if not reason.strip():
        raise CommandError("--reason is empty: say why nothing more can be done", ExitCode.USAGE)
    hours_ms, wait_s = [hour_start(text) for text in hour], parse_span_ms(wait, "s", option="--wait") / 1000
    with reading(store) as opened:
        check_topic(opened, topic)
        asked = partial(_named, opened, topic, withdraw=withdraw, unknown=unknown)
        named = {hour_ms: asked(hour_ms) for hour_ms in hours_ms}
        if not any(named.values()):
            raise _nothing(opened, topic, hours_ms, withdraw=withdraw, unknown=unknown)
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
            return all(digests.isdisjoint(asked(hour_ms)) for hour_ms in hours_ms)

        wait_until(lambda: judged(opened, topic, hours_ms), is_seen, wait_s)
        report = report_of(opened, topic, hours_ms)
    show(report, json=json)


def _nothing(
    store: AuditStore, topic: str, hours_ms: list[int], *, withdraw: bool, unknown: bool
) -> CommandError:
    """Returns the error that says that there is nothing to accept, or to take back, and what there is."""
    if withdraw:
        return CommandError(f"nothing is accepted in these hours of {topic}")
    proven = "lost, duplicated, altered or corrupt"
    if unknown:
        text = f"nothing is {proven} in these hours of {topic}, or unknown for good"
        return CommandError(f"{text}; `headrace audit report -t {topic}` says what is missing, or awaited")
    is_more = any(_named(store, topic, hour_ms, withdraw=False, unknown=True) for hour_ms in hours_ms)
    more = ". Some of it is unknown: if nobody will ever tell, accept that with --unknown" if is_more else ""
    return CommandError(f"nothing is {proven} in these hours of {topic}{more}")


def _named(store: AuditStore, topic: str, hour_ms: int, *, withdraw: bool, unknown: bool) -> dict[str, str]:
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
            found.update(
                (digest, finding.text) for digest, finding in acceptable(verdict, unknown=unknown).items()
            )
    return found


def _pieces(found: dict[str, str]) -> Iterable[dict[str, str]]:
    from headrace.audit.topic.acceptances import FINDINGS_PER_RECORD_MAX

    digests = list(found)
    for start in range(0, len(digests), FINDINGS_PER_RECORD_MAX):
        yield {digest: found[digest] for digest in digests[start : start + FINDINGS_PER_RECORD_MAX]}
