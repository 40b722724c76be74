"""`headrace audit recount`: has hours counted again from the logs, in every tier that counts logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from headrace.audit.evidence import TierEvidence
    from headrace.audit.repair.repairing import Judged
    from headrace.audit.store.store import AuditStore
    from headrace.site.context import ContextDatacenter

from headrace.cli.audit import check_topic, publisher, reading, show
from headrace.cli.audit_repair import StoreOption, TopicArgument
from headrace.cli.context import context
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, note, out, plain
from headrace.cli.values import parse_span_ms, parse_time_ms


class _Place(NamedTuple):
    """A tier's log of a source partition, and the addresses to count again."""

    tier: str
    datacenter: str
    partition: int
    log_partition: int
    from_address: int
    counted_to: int
    topic_id: str = ""


def recount(
    topic: TopicArgument,
    from_: Annotated[str, typer.Option("--from", help="The first hour, such as 2015-05-17T10 (UTC).")],
    to: Annotated[str, typer.Option("--to", help="The hour behind the last one.")],
    wait: Annotated[
        str, typer.Option("--wait", help="How long to wait for the auditors, such as 5m.")
    ] = "5m",
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Have the auditors count the logs of these hours again, from where the hours begin to the logs' ends.

    The new counts replace the old ones, and the report says so. A log of which retention has deleted a part
    of these hours is left out. The exit code is that of `audit report`.
    """
    from headrace.audit.repair.repairing import author, wait_until
    from headrace.audit.report.report import report as judge_all
    from headrace.process.clock import now_ms

    from_ms, to_ms, wait_s = (
        parse_time_ms(from_),
        parse_time_ms(to),
        parse_span_ms(wait, "s", option="--wait") / 1000,
    )
    if to_ms <= from_ms:
        raise CommandError(f"--to {to} is not behind --from {from_}", ExitCode.USAGE)
    with reading(store) as opened:
        check_topic(opened, topic)
        places = places_of(_judged(opened, topic, from_ms, to_ms))
        if not places:
            raise CommandError(f"no tier has counted anything of {topic} in these hours")
        places = _still_there(topic, places)
        asked_ms = now_ms()
        _ask(topic, places, author())
        for place in places if not json else ():
            where = f"partition {place.partition} of {plain(place.datacenter)}"
            out.print(f"count again  {place.tier}, {where}, from address {place.from_address}")
        wait_until(
            lambda: _judged(opened, topic, from_ms, to_ms),
            lambda found: are_counted(opened, topic, found, places, asked_ms),
            wait_s,
        )
        report = judge_all(opened, topic, from_ms, to_ms)
    show(report, json=json)


def places_of(found: Iterable[Judged]) -> list[_Place]:
    """Returns where the events of the judged hours lie, in every tier that counts a log."""
    from headrace.audit.topic.records import ANALYSIS_TIER, DATACENTER_TIER

    places: dict[tuple[str, str, int], _Place] = {}
    for evidence, _ in found:
        spans = [(DATACENTER_TIER, each) for each in evidence.datacenter_spans]
        spans += [(ANALYSIS_TIER, each) for each in evidence.analysis_spans]
        for tier, counted in spans:
            place = evidence.partition(counted.partition)
            log = place.analysis if tier == ANALYSIS_TIER else place.datacenter
            if log.heartbeat is None:
                continue
            number = place.log_partition if tier == ANALYSIS_TIER else counted.partition
            key, first = (tier, evidence.datacenter, counted.partition), counted.span.first_address
            if key in places:
                first = min(first, places[key].from_address)
            counted_to = max(first, log.heartbeat.counted_to_address)
            places[key] = _Place(*key, number or 0, first, counted_to, evidence.topic_id)
    return list(places.values())


def are_counted(
    store: AuditStore, topic: str, found: Iterable[Judged], places: Iterable[_Place], asked_ms: int
) -> bool:
    """Whether the store has forgotten the old counts of all places, and has new ones."""
    from headrace.audit.gathering.repairs import asked_recounts
    from headrace.audit.intervals import covers
    from headrace.audit.topic.records import ANALYSIS_TIER

    with store.reading() as connection:
        seen = {each[:4] for each in asked_recounts(connection, topic) if each.said_ms >= asked_ms}
    by_datacenter = {each.evidence.datacenter: each.evidence for each in found}
    for place in places:
        if (place.tier, place.datacenter, topic, place.partition) not in seen:
            return False
        if place.datacenter not in by_datacenter:
            return False
        evidence = by_datacenter[place.datacenter].partition(place.partition)
        log: TierEvidence = evidence.analysis if place.tier == ANALYSIS_TIER else evidence.datacenter
        if not covers(log.known(), place.from_address, place.counted_to):
            return False
    return True


def _judged(store: AuditStore, topic: str, from_ms: int, to_ms: int) -> list[Judged]:
    from headrace.audit.gathering import reported
    from headrace.audit.repair.repairing import judged

    with store.reading() as connection:
        hours_ms = reported.hours(connection, topic, from_ms, to_ms)
    return judged(store, topic, hours_ms)


def _still_there(topic: str, places: Sequence[_Place]) -> list[_Place]:
    """Returns the places whose logs still have all that is to be counted, and names the others: the store
    forgets counts that nobody could make again. Raises `CommandError` if none is left.
    """
    from headrace.client.errors import ClientError, UnknownTopicError

    found: list[_Place] = []
    starts: dict[tuple[str, int], int] = {}
    gone: dict[str, str] = {}
    for name, of_cluster in _by_datacenter(places).items():
        bootstrap, numbers = _cluster_of(of_cluster[0]).bootstrap, {each.log_partition for each in of_cluster}
        try:
            found_here = log_starts(bootstrap, topic, numbers)
        except UnknownTopicError as error:
            gone[name] = f"{error} at {bootstrap}"
            continue
        except ClientError as error:
            raise CommandError(f"{topic} at {bootstrap}: {error}. Nothing is counted again") from error
        starts |= {(name, number): start for number, start in found_here.items()}
    for place in places:
        log = f"{place.tier}, partition {place.partition} of {place.datacenter}"
        if problem := gone.get(_cluster_of(place).name):
            note(f"{plain(log)}, is left out: {plain(problem)} any more, so nobody can count it again")
            continue
        start = starts[_cluster_of(place).name, place.log_partition]
        if place.from_address < start:
            note(
                f"{plain(log)}, is left out: its log begins at address {start} now, so nobody can count "
                f"again what these hours have from address {place.from_address} on"
            )
        else:
            found.append(place)
    if not found:
        raise CommandError(f"no log has all of {topic} in these hours any more: give later hours to --from")
    return found


def log_starts(bootstrap: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Returns the address at which each partition's log begins now. Raises `ClientError`."""
    from headrace.client import Admin
    from headrace.client.admin import EARLIEST

    with Admin(bootstrap) as admin:
        found = admin.list_offsets(topic, EARLIEST, partitions=partitions)
    return {number: each.offset for number, each in found.items()}


def _by_datacenter(places: Iterable[_Place]) -> dict[str, list[_Place]]:
    """Returns the places by the datacenter whose brokers have their logs."""
    found: dict[str, list[_Place]] = {}
    for place in places:
        found.setdefault(_cluster_of(place).name, []).append(place)
    return found


def _cluster_of(place: _Place) -> ContextDatacenter:
    from headrace.audit.topic.records import ANALYSIS_TIER

    here = context()
    return here.analysis if place.tier == ANALYSIS_TIER else here.datacenter(place.datacenter)


def _ask(topic: str, places: Sequence[_Place], who: str) -> None:
    from headrace.audit.topic.recounts import RecountRecord, asked_by

    for place in places:
        with publisher("recount", _cluster_of(place)) as says:
            record = RecountRecord(
                tier=place.tier,
                datacenter=place.datacenter,
                topic=topic,
                partition=place.partition,
                log_partition=place.log_partition,
                from_address=place.from_address,
                counted_to_address=place.counted_to,
                cause=asked_by(who),
                topic_id=place.topic_id,
            )
            says.publish(record)
            says.flush()
