"""The auditor of one datacenter: counts its logs, publishes counts and heartbeats. Owns one thread's loop.

Keeps no state on disk: a restart resumes at the last heartbeat in the audit topic. The store keeps only one
of two equal counts, and chooses among overlapping ones (`audit.store.cover`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from headrace.audit.batches.damage import is_good_at
from headrace.audit.batches.raw_reader import RawReader
from headrace.audit.counting.counted_logs import CountedLogs
from headrace.audit.counting.declaring import Declarations
from headrace.audit.counting.disk_damage import ASK_S as ASK_DISKS_S
from headrace.audit.counting.disk_damage import DiskDamage
from headrace.audit.counting.known_ends import known_ends
from headrace.audit.counting.metrics import DamagedBatches
from headrace.audit.counting.partition_counter import (
    CountedPartition,
    PartitionCounter,
    heartbeat,
    partitions_status,
)
from headrace.audit.counting.replica_contents import ASK_S, PASSES_EVERY_S, ReplicaContents
from headrace.audit.counting.resuming import (
    begun_where_counts_hold,
    count_again,
    deleted_part,
    resume,
    take_back_again,
)
from headrace.audit.counting.salvage import count_past_damage
from headrace.audit.counting.set_aside_again import SetAsidePlaces
from headrace.audit.counting.settings import AuditorSettings, counted_partitions
from headrace.audit.counting.standing import Standings, TopicMadeAgainError
from headrace.audit.counting.stuck import LOOKS_MAX, StuckPartitions
from headrace.audit.topic.logs_read import named_id
from headrace.audit.topic.publish import AuditPublisher, AuditPublishError, UnpublishableRecordError
from headrace.audit.topic.reader import AuditReader, ReportedProducers
from headrace.audit.topic.records import DATACENTER_TIER, AuditRecord, ReceivedRecord
from headrace.client import Admin, Consumer
from headrace.client.admin import EARLIEST
from headrace.client.cluster import TopicInfo
from headrace.client.errors import ClientError, CorruptRecordsError, OffsetOutOfRangeError
from headrace.client.unpacking import FetchedBatches
from headrace.coordination.errors import CoordinationError
from headrace.coordination.mirrors import MirrorMap
from headrace.process.clock import now_ms
from headrace.registry.errors import RegistryError, RegistryUnavailableError
from headrace.wire.topic_names import TopicPartition

logger = logging.getLogger(__name__)

DISCOVER_S: Final = 2.0
POLL_S: Final = 0.2
RETRY_PAUSE_S: Final = 1.0
RETRIED: Final = (ClientError, CoordinationError, RegistryError, RegistryUnavailableError, AuditPublishError)
FETCH_FAILURES_MAX: Final = 8  # in a row; then the auditor asks the broker for the cause
UNPUBLISHED_MAX: Final = 20_000  # records; counting waits while as many cannot be published


class Auditor:
    """Counts and reports until `stop`.

    `mirrors` is the mirrors' map of a cluster that is mirrored into, None elsewhere. `trusted(datacenter,
    producer_id)`: see `audit.batches.tally`; by default the producers that reported in `audit_topic`.
    """

    def __init__(
        self,
        settings: AuditorSettings,
        *,
        mirrors: MirrorMap | None = None,
        trusted: Callable[[str, int], bool] | None = None,
    ) -> None:
        self.settings = settings
        self._mirrors = mirrors
        self._producers = ReportedProducers()
        self._trusted = trusted or self._producers.trusts
        client_id = f"auditor-{settings.datacenter}"
        self._admin = Admin(settings.bootstrap, client_id=client_id)
        self._consumer = Consumer(settings.bootstrap, client_id=client_id, auto_offset_reset="error")
        self._reader = AuditReader(
            bootstrap=settings.bootstrap,
            registry_url=settings.registry_url,
            topics=[settings.audit_topic],
            client_id=client_id,
        )
        self._publisher = AuditPublisher(
            bootstrap=settings.bootstrap,
            registry_url=settings.registry_url,
            datacenter=settings.datacenter,
            service="auditor",
            topic=settings.audit_topic,
        )
        self._declarations = Declarations(self._admin)
        self._topic_ids: dict[str, UUID] = {}
        self._counters: dict[TopicPartition, PartitionCounter] = {}
        self._logs = CountedLogs(self._consumer)
        self._interruptions: dict[TopicPartition, int] = {}  # partition → those after which it was checked
        self._unpublished: list[AuditRecord] = []
        self._raw = RawReader(settings.bootstrap, client_id)
        self._standings = Standings(self._raw)
        self._places = SetAsidePlaces(self._raw)
        self._disks = DiskDamage(settings.bootstrap, client_id, self._raw)
        pass_s = min(PASSES_EVERY_S, 10 * settings.every_s)
        self._replicas = ReplicaContents(settings.bootstrap, client_id, pass_s=pass_s)
        self._topics: dict[str, TopicInfo] = {}
        self._stuck = StuckPartitions()
        self._ask_disks_at_s = 0.0
        self._damaged, self._problem = DamagedBatches(), "starting"
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends `run` soon. Any thread, also a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Counts and reports until `stop`."""
        try:
            while not self._stopping.is_set() and not self._attempt(self._resume):
                continue
            discover_at_s = report_at_s = ask_at_s = 0.0
            while not self._stopping.is_set():
                now_s = time.monotonic()
                if now_s >= discover_at_s and self._attempt(self._discover):
                    discover_at_s = now_s + DISCOVER_S
                if len(self._unpublished) < UNPUBLISHED_MAX:
                    self._attempt(self._count)
                    if now_s >= ask_at_s:
                        ask_at_s = now_s + ASK_S
                        self._attempt(self._ask_brokers)
                is_full = any(counter.is_full for counter in self._counters.values())
                if (now_s >= report_at_s or is_full) and self._attempt(self._report):
                    report_at_s = now_s + self.settings.every_s
            self._attempt(self._report)
        finally:
            clients = (self._consumer, self._disks, self._replicas, self._raw, self._reader)
            for client in (*clients, self._publisher, self._admin):
                client.close()

    def status(self) -> dict[str, Any]:
        """Returns how far it has counted and what is wrong, as plain data for `GET /status`."""
        return {
            "datacenter": self.settings.datacenter,
            "trouble": self._problem,
            "unsaid": len(self._unpublished),
            "corrupt": self._damaged.count,
            "set_aside": [each._asdict() for each in dict(self._reader.set_aside).values()],
            "partitions": partitions_status(dict(self._counters), dict(self._stuck.problems)),
        }

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Runs a step; returns False, after a pause, if brokers, ZooKeeper or registry fail it."""
        try:
            step()
        except RETRIED as error:
            if str(error) != self._problem:
                logger.warning("%s; retrying until it works", error)
            self._problem = str(error)
            self._stopping.wait(RETRY_PAUSE_S)
            return False
        self._problem = ""
        return True

    # --- resuming ---

    def _resume(self) -> None:
        """Learns how far the log of each partition was counted."""
        self._reader.register_schemas()
        self._reader.discover()
        present = counted_partitions(self.settings, self._mirrors, self._admin.topics())
        keys = {(each.topic, each.log_partition) for each in present}
        where, is_stopping = self.settings.datacenter, self._stopping.is_set
        self._standings.marks = resume(self._reader, where, self._learn, is_stopping, keys)

    def _learn(self, received: ReceivedRecord) -> None:
        self._producers.learn(received)
        self._places.learn(received)
        self._replicas.learn(received)
        for each in (self._declarations, self._standings.taken_back):
            each.learn(received, self.settings.datacenter)

    # --- counting ---

    def _discover(self) -> None:
        self._reader.discover()
        found = self._topics = self._admin.topics()
        self._topic_ids = {name: info.topic_id for name, info in found.items()}
        if self.settings.audit_topic in found:  # the broker that answers has heard of topics
            self._unpublished += self._declarations.gone(self._topic_ids)
        self._forget_deleted({(name, partition) for name in found for partition in found[name].partitions})
        fresh: list[CountedPartition] = []
        for partition in counted_partitions(self.settings, self._mirrors, found):
            counter = self._counters.get((partition.topic, partition.log_partition))
            if counter is None:
                fresh.append(partition)
            elif counter.partition != partition:
                self._unpublished += counter.cut()
                counter.partition = partition  # it is known now whose copy this is
        audit_topic_id = self._topic_ids.get(self.settings.audit_topic)
        self._unpublished += take_back_again(
            self._admin, audit_topic_id, self._counters, self._standings, self._logs
        )
        begun = begun_where_counts_hold(self._admin, self._standings, fresh, self._topic_ids)
        places = {key: mark.counted_to for key, (_, mark, _) in begun.items()}
        self._logs.begin(places, self._topic_ids)
        for key, (partition, mark, recounts) in begun.items():
            self._counters[key] = PartitionCounter(
                partition,
                mark.counted_to,
                self.settings.bucket_ms,
                self._trusted,
                last=mark.last,
                content=mark.content,
            )
            self._interruptions[key] = 0
            self._unpublished += recounts

    def _goes_back(self, key: TopicPartition, counter: PartitionCounter, *, always: bool = False) -> bool:
        """Whether the log lost what was counted; it is then counted again. Checked after failed fetches, or
        `always`. Raises `ClientError`.
        """
        interruptions = self._consumer.interruptions(*key)
        if not always and interruptions == self._interruptions.get(key, 0):
            return False
        topic, number = key
        start = self._admin.list_offsets(topic, EARLIEST, partitions=[number])[number].offset
        topic_id = named_id(self._admin.topic(topic).topic_id)
        if topic_id != self._logs.topic_id(key):
            raise TopicMadeAgainError(f"{topic} was deleted and made again")  # `_discover` begins anew
        recounts = self._standings.check(counter, start, topic_id)
        self._interruptions[key] = interruptions
        self._unpublished += recounts
        if recounts:
            self._logs.seek(topic, number, counter.counted_to)
        return bool(recounts)

    def _forget_deleted(self, existing: set[TopicPartition]) -> None:
        """Forgets partitions of topics that were deleted, or deleted and made again."""
        made_again = self._logs.of_other_topics(self._topic_ids)
        gone = (self._counters.keys() - existing) | (self._counters.keys() & made_again)
        if not gone:
            return
        for key in gone:
            counter = self._counters.pop(key)
            self._unpublished += counter.cut()
            self._standings.forget(counter.partition)
            self._stuck.go_on(key)
            self._interruptions.pop(key, None)
        self._logs.end(gone)

    def _count(self) -> None:
        for received in self._reader.poll(0.0).records:
            self._learn(received)
            count_again(received, self._counters, self._standings, self._logs)
        try:
            fetched = self._consumer.poll_batches(POLL_S)
        except OffsetOutOfRangeError as error:
            self._skip_deleted(error)
            return
        except CorruptRecordsError as error:
            self._look_closely((error.topic, error.partition))
            return
        for batches in fetched:
            self._feed(batches)
        self._look_at_failing()

    def _ask_brokers(self) -> None:
        """Asks what scrubs found, what damaged places and a piece of a broker's replicas hold now."""
        now_s, counters = time.monotonic(), self._counters
        if now_s >= self._ask_disks_at_s:
            self._ask_disks_at_s = now_s + ASK_DISKS_S
            self._unpublished += self._disks.news(counters, self._standings.marks.went_back, self._topics)
            self._unpublished += self._places.news(counters)
        self._unpublished += self._replicas.news(counters, self._standings.marks, self._topics, now_s)

    def _feed(self, batches: FetchedBatches) -> None:
        key = (batches.topic, batches.partition)
        counter = self._counters[key]
        try:
            if self._goes_back(key, counter):
                return
        except ClientError as error:
            # Not raised: the other partitions' batches of this poll are to be counted.
            self._stuck.stop(key, str(error))
            self._logs.seek(*key, counter.counted_to)
            return
        try:
            if batches.address != counter.counted_to:
                if not is_good_at(batches.buffer, 0, batches.address):
                    self._look_closely(key)  # a base offset, which no checksum covers, is wrong
                    return
                self._jump(counter, batches.address)
            counter.feed(batches.buffer, batches.address)
        except Exception as error:
            # One partition's bytes must not end the counting of all others, whatever was not foreseen.
            logger.exception("counting of %s-%d stops", *key)
            self._stuck.stop_for_good(key, f"{type(error).__name__}: {error}")
            self._consumer.pause(*key)
            return
        if counter.counted_to != batches.end_address:
            self._look_closely(key)

    def _look_closely(self, key: TopicPartition) -> None:
        """Counts past the damage at which counting of a partition stopped, or notes why that fails."""
        counter = self._counters[key]
        problem, is_stuck = "", False
        try:
            if not self._goes_back(key, counter):
                gives_up = self._stuck.note_look(key) >= LOOKS_MAX
                salvaged = count_past_damage(self._raw, counter, gives_up=gives_up)
                if salvaged.jump_to is not None:
                    self._jump(counter, salvaged.jump_to)
                problem, is_stuck = salvaged.stuck, bool(salvaged.stuck)
        except ClientError as error:
            problem = str(error)
        if problem:
            self._stuck.stop(key, problem)
        else:
            self._stuck.go_on(key)
        (self._consumer.pause if is_stuck else self._consumer.resume)(*key)
        self._logs.seek(*key, counter.counted_to)

    def _look_at_failing(self) -> None:
        """Looks closely at one partition that is stuck, or whose fetches fail again and again."""
        key = self._stuck.take_due(
            self._counters, lambda key: self._consumer.fetch_failures(*key) >= FETCH_FAILURES_MAX
        )
        if key is not None:
            self._look_closely(key)
            self._stuck.pause()

    def _jump(self, counter: PartitionCounter, address: int) -> None:
        """Continues at another address than the one counted to: the log has no batches in between."""
        counted_to, partition = counter.counted_to, counter.partition
        logger.warning("%s: counted to %d, the next batch is at %d", partition.name, counted_to, address)
        self._unpublished += counter.cut()
        if address > counted_to:
            self._unpublished += partition.gaps(counted_to, address, "the log has no batches there")
        counter.skip_to(address)

    def _skip_deleted(self, error: OffsetOutOfRangeError) -> None:
        """Reports addresses that the log no longer has as a gap, and continues where it begins now."""
        topic, number = error.topic, error.partition
        counter = self._counters[topic, number]
        if self._goes_back((topic, number), counter, always=True):
            return
        self._unpublished += counter.cut()
        start, gaps = deleted_part(self._admin, counter)
        self._unpublished += gaps
        counter.skip_to(start)
        self._logs.seek(topic, number, start)

    # --- reporting ---

    def _report(self) -> None:
        """Publishes all counts since the last report; once they are acknowledged, the heartbeat. Before it,
        what topics declare: an hour is judged once a heartbeat follows its end.
        """
        own = {key[0] for key, each in self._counters.items() if DATACENTER_TIER in each.partition.tiers}
        topic_ids = {name: self._topic_ids[name] for name in own if name in self._topic_ids}
        counts = {name: len(self._topics[name].partitions) for name in topic_ids}
        self._unpublished += self._declarations.news(topic_ids, counts)
        for counter in self._counters.values():
            self._unpublished += counter.cut()
        for record in self._unpublished:
            try:
                self._publisher.publish(record)
            except UnpublishableRecordError as error:
                # The audit will not know what it counted; the others must not wait for it.
                logger.error("a record about %s cannot be published: %s", record.key(), error)
        self._publisher.flush()
        self._damaged.add(self._unpublished)
        self._unpublished.clear()
        counters = known_ends(self._counters, self._consumer)
        ids = self._logs.topic_ids()
        for part in heartbeat(now_ms(), counters, ids):
            self._publisher.publish(part)
        self._publisher.flush()
        for counter, _ in counters:
            self._standings.note(counter, ids.get(counter.partition.topic, ""))
