"""The mirroring service of one source: discovers topics, locates copies, runs the pipeline, reports gaps.

Owns the manager's loop. Keeps no state of its own: the next start continues where the copies end at the
target.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

from headrace.audit.topic.logs_read import named_id
from headrace.audit.topic.publish import AuditPublisher, AuditPublishError
from headrace.audit.topic.records import ANALYSIS_AUDIT_TOPIC, ANALYSIS_TIER, GapRecord
from headrace.client.cluster import TopicInfo
from headrace.client.errors import ClientError
from headrace.coordination.errors import CoordinationError
from headrace.coordination.mirrors import MirrorMap
from headrace.coordination.session import ZooKeeperSession
from headrace.mirror.copying import CopyState, PartitionCopy
from headrace.mirror.discovery import CopiedAlreadyError, NotAMirrorError, TargetTopics, wanted
from headrace.mirror.locating import (
    Located,
    LocatingError,
    SourceDamagedError,
    SourceGapError,
    locate,
)
from headrace.mirror.locators import Locators, Sides
from headrace.mirror.pipeline import Pipeline
from headrace.mirror.side import MirrorSide
from headrace.replication.pull import ReplicationError, SourceBehindError
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID

logger = logging.getLogger(__name__)

DISCOVER_S: Final = 2.0
PREPARE_MAX_S: Final = 2.0  # for all topics of one round, and one more
ABSENT_MAX_S: Final = 60.0
"""How long a partition may be absent from the source's list before its copy is forgotten."""
STEP_S: Final = 0.2
TOPICS_MAX: Final = 10_000
UNREPORTED_GAPS_MAX: Final = 10_000
REPORT_RETRY_S: Final = 5.0
REPORTING_END_MAX_S: Final = 1.0
ZOOKEEPER_TIMEOUT_S: Final = 10.0
ZOOKEEPER_CONNECT_S: Final = 3.0  # per attempt; a SIGTERM waits for it


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """The settings of one mirror. Without `registry_url` gaps are only logged, not reported to the audit."""

    source_datacenter: str
    source_bootstrap: str
    target_bootstrap: str
    target_zookeeper: str
    include: re.Pattern[str]
    exclude: re.Pattern[str] | None = None
    target_datacenter: str = "analysis"
    registry_url: str | None = None


class MirrorService:
    """Mirrors until `stop`. Any thread may call `status`."""

    def __init__(self, settings: MirrorSettings) -> None:
        self.settings = settings
        self._client_id = f"mirror-{settings.source_datacenter}"
        self._copies: dict[tuple[str, int], PartitionCopy] = {}
        self._topic_problems: dict[str, str] = {}
        self._tried_s: dict[str, float] = {}
        """When topics that are to be prepared were tried last."""
        self._absent_since_s: dict[tuple[str, int], float] = {}
        """Partitions with copies that the source does not have."""
        self._problem = "not started"
        self._gaps_lock = threading.Lock()
        self._unreported_gaps: dict[tuple[str, int, int], GapRecord] = {}
        """By topic, partition and first address: the source's retention makes a gap larger and larger."""
        self._reported_gaps: dict[tuple[str, int], GapRecord] = {}
        """The last one of each partition."""
        self._stopping = threading.Event()
        self._pipeline = Pipeline(
            settings.source_bootstrap, settings.target_bootstrap, client_id=self._client_id
        )

    def stop(self) -> None:
        """Ends `run` soon. Any thread, also a signal handler."""
        self._stopping.set()

    def close(self) -> None:
        """Closes the connections of a service that never ran."""
        self._pipeline.close()

    def run(self) -> None:
        """Mirrors until `stop`. Raises `RuntimeError` if a loop of the pipeline failed."""
        session = self._connect()
        if session is None:
            self.close()
            return
        side = partial(MirrorSide, client_id=self._client_id)
        own = Sides(side(self.settings.source_bootstrap), side(self.settings.target_bootstrap))
        locators = Locators(own)
        # A registry or an audit topic that does not answer keeps no copy waiting.
        reporting = threading.Thread(target=self._report_always, name="mirror-gaps", daemon=True)
        try:
            admins = own.source.admin, own.target.admin
            topics = TargetTopics(self.settings.source_datacenter, *admins, MirrorMap(session))
            self._pipeline.start()
            reporting.start()
            discover_at_s = 0.0
            while not self._stopping.is_set():
                if time.monotonic() >= discover_at_s:
                    are_all_tried = self._discover(*own, topics)
                    discover_at_s = time.monotonic() + (DISCOVER_S if are_all_tried else 0.0)
                self._locate(locators, topics)
                if not self._pipeline.is_alive:
                    raise RuntimeError(f"a copying loop failed: {self._pipeline.failure!r}")
                self._stopping.wait(STEP_S)
        finally:
            self._stopping.set()
            self._pipeline.close()
            if reporting.ident is not None:
                reporting.join(REPORTING_END_MAX_S)
            session.close()
            locators.close()
            own.close()

    def status(self) -> dict[str, Any]:
        """Returns how far each copy is and what is wrong, as plain data for `GET /status`."""
        with self._pipeline.lock:
            partitions = [copy.status() for _, copy in sorted(self._copies.items())]
        return {
            "source": self.settings.source_datacenter,
            "target": self.settings.target_datacenter,
            "trouble": self._problem,
            "topic_troubles": dict(self._topic_problems),
            "lag_bytes": sum(partition["lag_bytes"] for partition in partitions),
            "partitions": partitions,
        }

    def _connect(self) -> ZooKeeperSession | None:
        """Returns a session with the target's ZooKeeper once it responds; None after `stop`."""
        while not self._stopping.is_set():
            session = ZooKeeperSession(
                self.settings.target_zookeeper, timeout_s=ZOOKEEPER_TIMEOUT_S, name=self._client_id
            )
            try:
                return session.start(connect_timeout_s=ZOOKEEPER_CONNECT_S)
            except CoordinationError as error:
                self._note(str(error))
        return None

    def _note(self, problem: str) -> None:
        """Stores discovery's problem for `status` ("" for none), and logs it when it changes."""
        if problem != self._problem:
            (logger.warning if problem else logger.info)(problem or "discovery works")
        self._problem = problem

    def _discover(self, source: MirrorSide, target: MirrorSide, topics: TargetTopics) -> bool:
        """Prepares topics that have new partitions in the source, or lack some at the target. Returns whether
        all of them were tried.
        """
        try:
            source_topics = source.admin.topics()
            target_topics = target.admin.topics()
        except ClientError as error:
            self._note(f"cannot list topics: {error}")
            return True
        names = wanted(source_topics, self.settings.include, self.settings.exclude)
        too_many = names[TOPICS_MAX:]
        self._note(
            f"{len(too_many)} topics, from {too_many[0]} on, are not mirrored: at most {TOPICS_MAX} are"
            if too_many
            else ""
        )
        for name in self._topic_problems.keys() - set(names):
            del self._topic_problems[name]
        self._forget(source_topics)
        due: dict[str, tuple[int, UUID]] = {}
        for name in names[:TOPICS_MAX]:
            count = max(source_topics[name].partitions, default=-1) + 1
            copies = [self._copies.get((name, partition)) for partition in range(count)]
            found = target_topics.get(name)
            existing = {} if found is None else found.partitions
            found_id = NO_UUID if found is None else found.topic_id
            with self._pipeline.lock:
                for copy in filter(None, copies):
                    copy.target_is(found_id, time.monotonic())
            if any(copy is None or copy.target_partition not in existing for copy in copies):
                due[name] = count, found_id
        # Those first whose last try was the longest ago. Copies wait to be located meanwhile.
        self._tried_s = {name: self._tried_s.get(name, 0.0) for name in due}
        until_s = time.monotonic() + PREPARE_MAX_S
        for name in sorted(due, key=self._tried_s.__getitem__):
            if time.monotonic() >= until_s or self._stopping.is_set():
                return False
            self._tried_s[name] = time.monotonic()
            self._prepare(source_topics[name], due[name][0], topics, due[name][1])
        return True

    def _forget(self, source_topics: Mapping[str, TopicInfo]) -> None:
        """Ends the copying of partitions that the source no longer has: after a while, since a broker that
        has just begun may know few. Their copies stay as they are.
        """
        now_s = time.monotonic()
        absent = [key for key in self._copies if _is_absent(source_topics.get(key[0]), key[1])]
        self._absent_since_s = {key: self._absent_since_s.get(key, now_s) for key in absent}
        gone: dict[str, list[tuple[str, int]]] = {}
        for key in absent:
            if now_s - self._absent_since_s[key] >= ABSENT_MAX_S:
                gone.setdefault(key[0], []).append(key)
                del self._absent_since_s[key]
        for name, keys in gone.items():
            with self._pipeline.lock:
                self._pipeline.remove([self._copies.pop(key) for key in keys])
            what = f"{name}-{keys[0][1]} is no more" if name in source_topics else f"{name} was deleted"
            logger.info("%s in the source: its copy is mirrored no longer, and stays", what)

    def _prepare(self, topic: TopicInfo, count: int, topics: TargetTopics, found_id: UUID) -> None:
        """Creates the mirror partitions of a topic that is new, has grown, or was deleted at the target.
        `found_id`: its id there, zero if there was none.
        """
        name = topic.name
        try:
            numbers = topics.prepare(name, count, topic.topic_id)
        except (NotAMirrorError, CopiedAlreadyError, ClientError, CoordinationError) as error:
            if self._topic_problems.get(name) != str(error):
                logger.warning("topic %s is not mirrored: %s", name, error)
            self._topic_problems[name] = str(error)
            return
        self._topic_problems.pop(name, None)
        known = [copy for copy in self._copies.values() if copy.topic == name]
        fresh = [
            PartitionCopy(name, partition, number, draw=random.random, seen_id=found_id)
            for partition, number in enumerate(numbers)
            if (name, partition) not in self._copies
        ]
        with self._pipeline.lock:
            self._copies |= {(copy.topic, copy.partition): copy for copy in fresh}
            for copy in known:
                copy.recheck()
        self._pipeline.add(fresh)
        logger.info("mirroring %s: %d partitions into target partitions %s", name, count, numbers)

    def _locate(self, locators: Locators, topics: TargetTopics) -> None:
        """Locates the copies that are new or had a problem."""
        now_s = time.monotonic()
        with self._pipeline.lock:
            unlocated: dict[str, list[PartitionCopy]] = {}
            for copy in self._copies.values():
                if copy.needs_locating(now_s):
                    unlocated.setdefault(copy.topic, []).append(copy)
        done = locators.located(unlocated, partial(_located, topics))
        with contextlib.closing(done):
            for topic, (asked_s, found) in done:
                with self._pipeline.lock:
                    for copy in unlocated[topic]:
                        self._apply_location(copy, found[copy.partition], asked_s)
                self._pipeline.wake()
                if self._stopping.is_set():
                    return

    def _apply_location(
        self, copy: PartitionCopy, found: Located | LocatingError | CoordinationError, asked_s: float
    ) -> None:
        """Applies the result of locating, begun at `asked_s`: the copy continues, halts or backs off."""
        now_s = time.monotonic()
        if isinstance(found, Located):
            if copy.problem:
                logger.info("%s continues at address %d, after: %s", copy.name, found.address, copy.problem)
            copy.located(*found, asked_s=asked_s)
            if found.is_empty:
                self._note_beginning(copy, found)
        elif isinstance(found, SourceBehindError):
            was_halted = copy.state is CopyState.HALTED
            copy.source_is_behind(str(found), now_s)
            if copy.state is CopyState.HALTED and not was_halted:
                logger.error("%s is halted: %s", copy.name, found)
        elif isinstance(found, ReplicationError):
            problem, gap = str(found), None
            if isinstance(found, SourceGapError | SourceDamagedError):
                gap = (found.copy_end, found.source_start)
                problem = self._note_gap(copy, problem, gap)
            if copy.state is not CopyState.HALTED or (gap is not None and problem != copy.problem):
                logger.error("%s is halted: %s", copy.name, problem)
            copy.halt(problem, now_s, gap)
        else:
            copy.back_off(str(found), now_s)

    def _note_beginning(self, copy: PartitionCopy, found: Located) -> None:
        """Notes a gap to report if a copy begins behind the source's first addresses: nobody else says that
        they were never copied.
        """
        begin = min([found.address, *(gap.from_address for gap in found.passed_gaps)])
        if begin > 0:
            problem = f"when the copy began, the source began at {begin}: it had deleted what lay before"
            if self._note_unreported(copy, problem, (0, begin)):
                logger.warning("%s: addresses 0 to %d are not copied: %s", copy.name, begin, problem)

    def _note_gap(self, copy: PartitionCopy, problem: str, gap: tuple[int, int]) -> str:
        """Notes a gap to report; returns the problem with the command that accepts the gap."""
        self._note_unreported(copy, problem, gap)
        return (
            f"{problem}. A copy cannot contain a gap: once the copy's data is loaded into HDFS, run "
            f"`headrace mirror accept-gap {copy.topic} {copy.partition} --source "
            f"{self.settings.source_datacenter}`; the copy then drops "
            f"what it holds and restarts at {gap[1]}"
        )

    def _note_unreported(self, copy: PartitionCopy, problem: str, gap: tuple[int, int]) -> bool:
        """Notes a gap to report; returns whether it is a new one."""
        place = (ANALYSIS_TIER, self.settings.source_datacenter, copy.topic, copy.partition)
        record = GapRecord(*place, *gap, problem, topic_id=named_id(copy.topic_id))
        key = (copy.topic, copy.partition, gap[0])
        with self._gaps_lock:
            known = self._unreported_gaps.get(key) or self._reported_gaps.get(key[:2])
            if record == known:
                return False
            if key not in self._unreported_gaps and len(self._unreported_gaps) >= UNREPORTED_GAPS_MAX:
                logger.warning(
                    "%s: %d gaps wait to be reported, this one is not", copy.name, UNREPORTED_GAPS_MAX
                )
                return False
            self._unreported_gaps[key] = record
        return True

    def _report_always(self) -> None:
        """Reports gaps to the audit, so that it does not wait for records that can never be mirrored."""
        url = self.settings.registry_url
        publisher: AuditPublisher | None = None
        while url is not None and not self._stopping.wait(STEP_S):
            with self._gaps_lock:
                gaps = dict(self._unreported_gaps)
            if not gaps:
                continue
            try:
                publisher = publisher or self._open_publisher(url)
                for gap in gaps.values():
                    publisher.publish(gap)
                publisher.flush()
            except Exception as error:
                log = logger.warning if isinstance(error, AuditPublishError) else logger.exception
                log("cannot report a gap yet: %s", error)
                self._stopping.wait(REPORT_RETRY_S)
                continue
            with self._gaps_lock:
                for key, gap in gaps.items():
                    self._reported_gaps[key[:2]] = gap
                    if self._unreported_gaps[key] is gap:
                        del self._unreported_gaps[key]
        if publisher is not None:
            publisher.close()

    def _open_publisher(self, registry_url: str) -> AuditPublisher:
        return AuditPublisher(
            bootstrap=self.settings.target_bootstrap,
            registry_url=registry_url,
            datacenter=self.settings.target_datacenter,
            service=self._client_id,
            topic=ANALYSIS_AUDIT_TOPIC,
        )


def _is_absent(topic: TopicInfo | None, partition: int) -> bool:
    """Whether the source has no such partition: a topic that was made again may have fewer."""
    return topic is None or (topic.error is ErrorCode.NONE and partition not in topic.partitions)


def _located(
    topics: TargetTopics, sides: Sides, topic: str, copies: list[PartitionCopy]
) -> tuple[float, dict[int, Located | LocatingError | CoordinationError]]:
    """Locates copies of one topic, and records whose bytes they hold before the first ones are copied.
    Returns when it began, too.
    """
    asked_s = time.monotonic()
    pairs = {copy.partition: copy.target_partition for copy in copies}
    suspects = {copy.partition: copy.suspect for copy in copies if copy.suspect is not None}
    found: dict[int, Located | LocatingError | CoordinationError] = {}
    try:
        copied_ids = topics.copied_ids(topic)
        found |= locate(*sides, topic, pairs, suspects, copied_ids)
        ids = {
            pairs[partition]: each.topic_id for partition, each in found.items() if isinstance(each, Located)
        }
        topics.note_ids(topic, {number: each for number, each in ids.items() if each != NO_UUID})
    except (ClientError, CoordinationError, NotAMirrorError) as error:
        found = dict.fromkeys(pairs, error)
    return asked_s, found
