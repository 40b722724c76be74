"""Reports that are missing for an hour, which must not make the hour look complete. Pure.

Events that wait in a client or were dropped there before they had a sequence number, publishers that stopped
without closing, tallies that have not arrived, auditors that stopped reporting, counts that contradict each
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from itertools import islice
from typing import Final

from headrace.audit import phrases
from headrace.audit.evidence import Evidence, Handover, PartitionEvidence, PublisherState, TierEvidence
from headrace.audit.findings import PRODUCER_HOP, Finding, Policy, Status
from headrace.audit.intervals import subtract, union
from headrace.audit.times import NEXT_REPORT_MS, is_named
from headrace.audit.verdicts.hop_counts import is_counts_only

GONE_MS: Final = 24 * 3_600_000
"""After so long a silence a finding says what to do if the datacenter is gone for good."""
LISTED_MAX: Final = 8
"""Partitions that a finding names."""
NO_REPORT_MS: Final = -(2**63)
DELETED_SLACK_MS: Final = 2 * 60_000
"""How long before it sees that a topic is deleted an auditor that runs may have counted it last."""


def judge_silence(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    """Yields the findings of the producer hop about missing reports rather than missing records.

    Publishers' silence proves nothing about a topic that is counted from the log on.
    """
    yield from _silent_publishers(evidence, policy, now_ms)
    for partition, place in sorted(evidence.partitions.items()):
        for problem in place.contradictions:
            about = phrases.of_topic(problem, evidence)
            yield Finding(Status.UNKNOWN, PRODUCER_HOP, problem, partition=partition, about=about)
        yield from _missing_tallies(partition, place.datacenter, evidence, policy, now_ms)
        yield from _uncounted_gaps(partition, place, evidence)
    if not evidence.is_deleted and not evidence.is_after_deletion:
        yield from _silent_auditor(evidence, policy, now_ms)
        yield from _lagging_auditor(evidence, policy, now_ms)


def _silent_publishers(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    for handover in evidence.handovers:
        has_unsequenced = handover.handed_over_count > handover.sequenced_count
        if has_unsequenced and not is_counts_only(evidence, handover):
            finding = _unsequenced(handover, evidence, policy, now_ms)
            if finding.status is not Status.UNKNOWN or not evidence.is_counted_from_log:
                yield finding
    if not evidence.is_counted_from_log:
        yield from _vanished_publishers(evidence, policy, now_ms)
        yield from _missing_reports(evidence)
        yield from _lost_logs(evidence, policy)


def _unsequenced(handover: Handover, evidence: Evidence, policy: Policy, now_ms: int) -> Finding:
    count = handover.handed_over_count - handover.sequenced_count
    publisher = evidence.publishers.get(handover.publisher)
    service, server = (publisher.service, publisher.server) if publisher else (None, None)
    if handover.final or (publisher is not None and publisher.closed):
        status, predicate = Status.LOST, "were dropped in the client before they had a sequence number"
    elif publisher is not None and now_ms - publisher.last_ms < policy.delay_ms:
        status, predicate = Status.PENDING, "wait in the client"
    else:
        status, predicate = Status.UNKNOWN, "waited in the client when it last reported"
    return Finding(
        status,
        PRODUCER_HOP,
        f"{phrases.events(count, evidence)}, handed over to service {service} on {server}, {predicate}",
        record_count=count,
        service=service,
        server=server,
        about=f"publisher {handover.publisher}",
    )


def _vanished_publishers(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    """Yields publishers that have not closed, and are silent since they had events of this hour, or may have
    had their first ones.

    Pending at first, because a publisher may be slow; never complete, because it may have died with events
    that it did not report: of the hour of its last report, or of the next one if that came soon.
    """
    last_report_ms = dict.fromkeys(evidence.unclosed, NO_REPORT_MS)
    for handover in evidence.handovers:
        known_ms = last_report_ms.get(handover.publisher, NO_REPORT_MS)
        last_report_ms[handover.publisher] = max(known_ms, handover.reported_ms)
    for name, at_ms in sorted(last_report_ms.items()):
        publisher = evidence.publishers.get(name)
        if publisher is None or publisher.closed:
            continue
        silent_ms = now_ms - publisher.last_ms
        if silent_ms < min(policy.publisher_silence_ms, policy.delay_ms):
            continue
        stopped_with_events = at_ms > publisher.last_ms - policy.report_grace_ms
        if stopped_with_events or may_have_stopped_in(evidence, publisher):
            yield Finding(
                Status.UNKNOWN if silent_ms >= policy.delay_ms else Status.PENDING,
                PRODUCER_HOP,
                f"service {publisher.service} on {publisher.server}, {evidence.datacenter}, last reported at "
                f"{phrases.instant(publisher.last_ms)} and never closed: it is not known how many "
                f"more events of {evidence.topic}, {phrases.hour(evidence.hour_ms)}, it accepted"
                + (_if_gone(publisher.server, evidence) if silent_ms >= GONE_MS else ""),
                service=publisher.service,
                server=publisher.server,
                about=f"publisher {name}, silent since its report {publisher.report_number}",
            )


def _if_gone(server: str, evidence: Evidence) -> str:
    if not is_named(evidence.hour_ms):
        return ""
    topic, hour = evidence.topic, phrases.hour(evidence.hour_ms).replace(" ", "T")
    command = f"headrace audit accept {topic} --hour {hour} --unknown --reason …"
    return f". If {server} is gone for good: `{command}`"


def may_have_stopped_in(evidence: Evidence, publisher: PublisherState) -> bool:
    """Whether a publisher that reports no more may have been handed its last events in this hour."""
    return evidence.hour_ms - NEXT_REPORT_MS <= publisher.last_ms < evidence.end_ms


def _missing_reports(evidence: Evidence) -> Iterator[Finding]:
    """Yields reports that the audit's topic lost: what they counted may be lost from the topic's log, too.

    They may have counted events of the hours in which they were made, and of those in which the publisher had
    events at that time: events that are published anew have the times that they had.
    """
    for missing in evidence.missing_reports:
        times = (missing.from_ms, missing.until_ms)
        made = times if missing.made_ms is None else sorted((missing.from_ms, missing.made_ms))
        is_of_hour = made[0] < evidence.end_ms and evidence.hour_ms <= made[1]
        if not is_of_hour and not _had_events(missing.publisher, times, evidence):
            continue
        yield Finding(
            Status.UNKNOWN,
            PRODUCER_HOP,
            f"report {missing.report_number} of service {missing.service} on {missing.server}, "
            f"{evidence.datacenter}, had arrived and is not in _audit: it is not known how many more events "
            f"of {evidence.topic}, {phrases.hour(evidence.hour_ms)}, it counted",
            service=missing.service,
            server=missing.server,
            about=f"report {missing.report_number} of publisher {missing.publisher}",
        )


def _lost_logs(evidence: Evidence, policy: Policy) -> Iterator[Finding]:
    """Yields logs of audit topics that were deleted and made again: publishers that nobody has heard of may
    have reported there, on events that the topic's log has lost, too. As with reports that are missing, on
    the hours of that time, and on those on which others reported then.
    """
    for lost in evidence.lost_logs:
        first_ms, last_ms = lost.from_ms - policy.report_grace_ms, lost.until_ms + policy.report_grace_ms
        is_of_hour = first_ms < evidence.end_ms and evidence.hour_ms <= lost.until_ms
        if not is_of_hour and not any(first_ms <= each.reported_ms <= last_ms for each in evidence.handovers):
            continue
        yield Finding(
            Status.UNKNOWN,
            PRODUCER_HOP,
            f"{lost.topic}-{lost.partition}, in which {evidence.datacenter}'s publishers report, was deleted "
            f"and made again: what they said from {phrases.instant(lost.from_ms)} to "
            f"{phrases.instant(lost.until_ms)} is lost, so it is not known how many more events of "
            f"{evidence.topic}, {phrases.hour(evidence.hour_ms)}, they accepted",
            about=f"log of {lost.topic}-{lost.partition}, of the topic with id {lost.topic_id}",
        )


def _had_events(publisher: str, times_ms: tuple[int, int], evidence: Evidence) -> bool:
    """Whether a publisher reported on this hour from one time of its clock to another."""
    state = evidence.publishers.get(publisher)
    skew_ms = 0 if state is None else state.skew_ms
    of_publisher = (each for each in evidence.handovers if each.publisher == publisher)
    return any(times_ms[0] <= each.reported_ms + skew_ms <= times_ms[1] for each in of_publisher)


def _missing_tallies(
    partition: int, log: TierEvidence, evidence: Evidence, policy: Policy, now_ms: int
) -> Iterator[Finding]:
    """Yields tallies that are missing after the first record of this hour."""
    spans = (counted.span for counted in evidence.datacenter_spans if counted.partition == partition)
    first = min((span.first_address for span in spans), default=None)
    if first is None or log.heartbeat is None:
        return
    known = union((*log.known(), *((gap.start, gap.end) for gap in log.gaps)))
    for low, high in subtract([(first, log.heartbeat.counted_to_address)], known):
        yield Finding(
            Status.UNKNOWN if now_ms - log.heartbeat.at_ms >= policy.delay_ms else Status.PENDING,
            PRODUCER_HOP,
            f"{evidence.datacenter}'s tally of {evidence.topic}, partition {partition}, addresses {low} to "
            f"{high}, has not arrived",
            partition=partition,
            after_address=low,
            before_address=high,
            about=phrases.of_topic("tally", evidence),
        )


def _uncounted_gaps(partition: int, place: PartitionEvidence, evidence: Evidence) -> Iterator[Finding]:
    """Yields addresses that nobody has counted, and that may have held events of this hour.

    Only of a topic that is counted from the log on: of others the producers' reports say what is missing.
    """
    if not evidence.is_counted_from_log:
        return
    known = union((*place.datacenter.known(), *place.analysis.known()))
    for gap in place.datacenter.gaps:
        is_before = gap.first_ms is not None and evidence.end_ms <= gap.first_ms
        is_behind = gap.last_ms is not None and gap.last_ms < evidence.hour_ms
        for low, high in [] if is_before or is_behind else subtract([(gap.start, gap.end)], known):
            yield Finding(
                Status.UNKNOWN,
                PRODUCER_HOP,
                f"{evidence.datacenter}'s auditor could not count addresses {low} to {high} of "
                f"{evidence.topic}, partition {partition}: {gap.cause}. It is not known how many events of "
                f"{phrases.hour(evidence.hour_ms)} they held",
                partition=partition,
                after_address=low,
                before_address=high,
                about=phrases.of_topic(gap.cause, evidence),
            )


def _silent_auditor(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    beats = {number: place.datacenter.heartbeat for number, place in sorted(evidence.partitions.items())}
    last_ms = max((beat.at_ms - evidence.ahead_ms for beat in beats.values() if beat), default=None)
    silence_ms = min(policy.silence_ms, policy.delay_ms)
    due_ms = min(now_ms - silence_ms, evidence.end_ms)
    if last_ms is None:
        return
    if last_ms >= due_ms:
        if evidence.is_counted_from_log:
            read_ms = {number: beat.at_ms - evidence.ahead_ms for number, beat in beats.items() if beat}
            late = {number: at_ms for number, at_ms in read_ms.items() if at_ms < due_ms}
            yield from _unread_logs(late, evidence, policy, now_ms)
            yield from _never_read_logs(read_ms.keys(), evidence, policy, now_ms)
        return
    if evidence.deleted_ms is not None:
        if evidence.is_counted_from_log or last_ms < evidence.deleted_ms - DELETED_SLACK_MS:
            yield _uncounted_end(evidence, evidence.deleted_ms, last_ms)
        return
    ahead = phrases.duration(evidence.ahead_ms)
    clock = (
        f" (its clock, ahead of the folding auditor's by {ahead}, said later)" if evidence.ahead_ms else ""
    )
    gone = f" If {evidence.datacenter} is gone for good: `headrace audit ended {evidence.datacenter}`"
    yield Finding(
        Status.UNKNOWN if last_ms < now_ms - policy.delay_ms else Status.PENDING,
        PRODUCER_HOP,
        f"{evidence.datacenter}'s auditor has not reported since {phrases.instant(last_ms)}{clock}, so it is "
        f"not known what {evidence.topic}, {phrases.hour(evidence.hour_ms)}, holds; is it running, and is "
        f"_audit mirrored?{gone if last_ms < now_ms - GONE_MS else ''}",
    )


def _uncounted_end(evidence: Evidence, deleted_ms: int, last_ms: int) -> Finding:
    """The topic was deleted, and what its logs got last was not counted. If producers report, their reports
    tell of that, unless the auditor was silent for long: then nobody would have named strangers' events.
    """
    return Finding(
        Status.UNKNOWN,
        PRODUCER_HOP,
        f"{evidence.topic} was deleted in {evidence.datacenter} (seen at {phrases.instant(deleted_ms)}). Its "
        f"auditor had counted the topic last at {phrases.instant(last_ms)}: it is not known what came then, "
        f"of {phrases.hour(evidence.hour_ms)}",
        about=_about_end(evidence, last_ms),
    )


def _unread_logs(
    late: Mapping[int, int], evidence: Evidence, policy: Policy, now_ms: int
) -> Iterator[Finding]:
    """Yields logs that the auditor cannot read, although it reads others: their producers need not report.

    `late`: partition → when it read that log last.
    """
    for partition, at_ms in late.items():
        yield Finding(
            Status.UNKNOWN if at_ms < now_ms - policy.delay_ms else Status.PENDING,
            PRODUCER_HOP,
            f"{evidence.datacenter}'s auditor has not read partition {partition} of {evidence.topic} since "
            f"{phrases.instant(at_ms)}, so it is not known what it holds of "
            f"{phrases.hour(evidence.hour_ms)}; has it a leader?",
            partition=partition,
            about=_about_end(evidence, at_ms),
        )


def _never_read_logs(read: Set[int], evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    """Yields, as one, the logs that the topic has and the auditor could never read."""
    if evidence.declared is None:
        return
    count, said_ms = evidence.declared
    missing_count = count - sum(number < count for number in read)
    if missing_count > 0:
        first = islice((number for number in range(count) if number not in read), LISTED_MAX)
        named = ", ".join(map(str, first))
        more = f" and {missing_count - LISTED_MAX} more" if missing_count > LISTED_MAX else ""
        never = f"partition {named}{more} of {evidence.topic}"
        yield Finding(
            Status.PENDING if now_ms < max(said_ms, evidence.end_ms) + policy.delay_ms else Status.UNKNOWN,
            PRODUCER_HOP,
            f"{evidence.datacenter}'s auditor has never read {never}, so it is not known what it holds of "
            f"{phrases.hour(evidence.hour_ms)}; has it a leader?",
            about="" if evidence.deleted_ms is None else phrases.of_topic(f"never read: {never}", evidence),
        )


def _lagging_auditor(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    """Yields logs of which not all is counted, unless counting has come to later hours.

    Only of a topic that is counted from the log on: of others the producers' reports say what is to come.
    """
    if not evidence.is_counted_from_log:
        return
    for partition, place in sorted(evidence.partitions.items()):
        beat, come_to_ms = place.datacenter.heartbeat, place.datacenter.frontier_ms
        if beat is None or beat.counted_to_address >= beat.end_address:
            continue
        if come_to_ms is not None and come_to_ms >= evidence.end_ms:
            continue
        yield Finding(
            Status.PENDING if now_ms < evidence.end_ms + policy.delay_ms else Status.UNKNOWN,
            PRODUCER_HOP,
            f"{evidence.datacenter}'s auditor has counted partition {partition} up to address "
            f"{beat.counted_to_address} of {beat.end_address}: what lies behind may be of {evidence.topic}, "
            f"{phrases.hour(evidence.hour_ms)}",
            partition=partition,
            after_address=beat.counted_to_address,
            before_address=beat.end_address,
            about=_about_end(evidence, beat.at_ms - evidence.ahead_ms),
        )


def _about_end(evidence: Evidence, last_ms: int) -> str:
    """Returns what nobody will count any more; "" while the topic is there. `last_ms`: see `ahead_ms`."""
    if evidence.deleted_ms is None:
        return ""
    end = f"end of {evidence.topic}, counted last at {last_ms + evidence.ahead_ms}"
    return phrases.of_topic(end, evidence)
