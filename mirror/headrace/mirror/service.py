"""The mirroring service of one source: discovers, locates, lets the pipeline copy, and says how it stands.

Owns the manager's loop. Keeps no state of its own: whatever dies, the next start asks the target where the
copies end and goes on there.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headrace.audit.publish import AuditPublisher, AuditPublishError
from headrace.audit.records import ANALYSIS_AUDIT_TOPIC, ANALYSIS_TIER, Gap
from headrace.client.errors import ClientError
from headrace.coordination.errors import CoordinationError
from headrace.coordination.mirrors import MirrorMap
from headrace.coordination.session import ZooKeeperSession
from headrace.mirror.copying import PartitionCopy, State
from headrace.mirror.discovery import NotAMirrorError, TargetTopics, wanted
from headrace.mirror.locating import Cluster, GapError, Located, LocatingError, locate
from headrace.mirror.pipeline import Pipeline
from headrace.replication.pull import ReplicationError

logger = logging.getLogger(__name__)

DISCOVER_S: Final = 2.0
STEP_S: Final = 0.2
TOPICS_MAX: Final = 10_000
GAPS_TO_SAY_MAX: Final = 10_000
ZOOKEEPER_TIMEOUT_S: Final = 10.0
ZOOKEEPER_CONNECT_S: Final = 3.0  # an attempt; a SIGTERM waits for it


@dataclass(frozen=True, slots=True)
class Settings:
    """What one mirror does. `registry_url` is for the records of gaps; without it they are only logged."""

    source_datacenter: str
    source_bootstrap: str
    target_bootstrap: str
    target_zookeeper: str
    include: re.Pattern[str]
    exclude: re.Pattern[str] | None = None
    target_datacenter: str = "analysis"
    registry_url: str | None = None


class Mirror:
    """Runs until `stop`. `status` may be asked from any thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._draw = draw
        self._client_id = f"mirror-{settings.source_datacenter}"
        self._copies: dict[tuple[str, int], PartitionCopy] = {}
        self._topic_troubles: dict[str, str] = {}
        self._trouble = "not started"
        self._gaps_to_say: dict[Gap, None] = {}
        self._gaps_said: set[Gap] = set()
        self._publisher: AuditPublisher | None = None
        self._stopping = threading.Event()
        self._pipeline = Pipeline(
            settings.source_bootstrap, settings.target_bootstrap, client_id=self._client_id
        )

    def stop(self) -> None:
        """End `run` soon. Any thread, also a signal handler."""
        self._stopping.set()

    def close(self) -> None:
        """Give back what was opened, without having run."""
        self._pipeline.close()

    def run(self) -> None:
        """Mirror until `stop` is called. Raises only what nobody could go on after."""
        session = self._connect()
        if session is None:
            self.close()
            return
        source = Cluster(self.settings.source_bootstrap, client_id=self._client_id)
        target = Cluster(self.settings.target_bootstrap, client_id=self._client_id)
        try:
            topics = TargetTopics(self.settings.source_datacenter, target.admin, MirrorMap(session))
            self._pipeline.start()
            discover_at_s = 0.0
            while not self._stopping.is_set():
                if self._clock() >= discover_at_s:
                    self._discover(source, target, topics)
                    discover_at_s = self._clock() + DISCOVER_S
                self._locate(source, target)
                self._say_gaps()
                if not self._pipeline.is_alive:
                    raise RuntimeError(f"the copying loop broke: {self._pipeline.failure!r}")
                self._stopping.wait(STEP_S)
        finally:
            self._pipeline.close()
            if self._publisher is not None:
                self._publisher.close()
            session.close()
            source.close()
            target.close()

    def status(self) -> dict[str, Any]:
        """Plain data: who mirrors what, how far, and what is wrong."""
        with self._pipeline.lock:
            partitions = [copy.status() for _, copy in sorted(self._copies.items())]
        return {
            "source": self.settings.source_datacenter,
            "target": self.settings.target_datacenter,
            "trouble": self._trouble,
            "topic_troubles": dict(self._topic_troubles),
            "lag_bytes": sum(each["lag_bytes"] for each in partitions),
            "partitions": partitions,
        }

    def _connect(self) -> ZooKeeperSession | None:
        """A session with the target's ZooKeeper, as soon as it answers; None if told to stop meanwhile."""
        while not self._stopping.is_set():
            session = ZooKeeperSession(
                self.settings.target_zookeeper, timeout_s=ZOOKEEPER_TIMEOUT_S, name=self._client_id
            )
            try:
                return session.start(connect_timeout_s=ZOOKEEPER_CONNECT_S)
            except CoordinationError as error:
                self._note(str(error))
        return None

    def _note(self, trouble: str) -> None:
        if trouble != self._trouble:
            (logger.warning if trouble else logger.info)(trouble or "discovery works")
        self._trouble = trouble

    def _discover(self, source: Cluster, target: Cluster, topics: TargetTopics) -> None:
        try:
            found = source.admin.topics()
            made = target.admin.topics()
        except ClientError as error:
            self._note(f"cannot list topics: {error}")
            return
        self._note("")
        names = wanted(found, self.settings.include, self.settings.exclude)
        for name in names[:TOPICS_MAX]:
            count = max(found[name].partitions, default=-1) + 1
            copies = [self._copies.get((name, partition)) for partition in range(count)]
            there = made[name].partitions if name in made else {}
            if any(copy is None or copy.target_partition not in there for copy in copies):
                self._prepare(name, count, topics)

    def _prepare(self, name: str, count: int, topics: TargetTopics) -> None:
        """Make room at the target for a topic that is new, has grown, or was deleted there."""
        try:
            numbers = topics.prepare(name, count)
        except (NotAMirrorError, ClientError, CoordinationError) as error:
            if self._topic_troubles.get(name) != str(error):
                logger.warning("topic %s is not mirrored: %s", name, error)
            self._topic_troubles[name] = str(error)
            return
        self._topic_troubles.pop(name, None)
        known = [copy for copy in self._copies.values() if copy.topic == name]
        fresh = [
            PartitionCopy(name, partition, number, draw=self._draw)
            for partition, number in enumerate(numbers)
            if (name, partition) not in self._copies
        ]
        with self._pipeline.lock:
            self._copies |= {(copy.topic, copy.partition): copy for copy in fresh}
            for copy in known:
                copy.look_again()
        self._pipeline.add(fresh)
        logger.info("mirroring %s: %d partitions into %s", name, count, numbers)

    def _locate(self, source: Cluster, target: Cluster) -> None:
        """Ask where the copies that had trouble end, topic by topic."""
        now_s = self._clock()
        with self._pipeline.lock:
            lost: dict[str, list[PartitionCopy]] = {}
            for copy in self._copies.values():
                if copy.is_to_be_located(now_s):
                    lost.setdefault(copy.topic, []).append(copy)
        for topic, copies in lost.items():
            if self._stopping.is_set():
                return
            pairs = {copy.partition: copy.target_partition for copy in copies}
            try:
                found = locate(source, target, topic, pairs)
            except ClientError as error:
                found = {copy.partition: error for copy in copies}
            with self._pipeline.lock:
                for copy in copies:
                    self._settle(copy, found[copy.partition])
        if lost:
            self._pipeline.wake()

    def _settle(self, copy: PartitionCopy, found: Located | LocatingError) -> None:
        now_s = self._clock()
        if isinstance(found, Located):
            if copy.reason:
                logger.info("%s goes on at address %d, after: %s", copy.name, found.address, copy.reason)
            copy.located(found.address, found.source_end, found.skipped)
        elif isinstance(found, ReplicationError):
            reason, gap = str(found), None
            if isinstance(found, GapError):
                reason, gap = self._note_gap(copy, found), (found.copy_end, found.source_start)
            if copy.state is not State.HALTED or (gap is not None and reason != copy.reason):
                logger.error("%s is halted: %s", copy.name, reason)
            copy.halt(reason, now_s, gap)
        else:
            copy.trouble(str(found), now_s)

    def _note_gap(self, copy: PartitionCopy, error: GapError) -> str:
        reason = str(error)
        if len(self._gaps_to_say) < GAPS_TO_SAY_MAX:
            gap = Gap(
                ANALYSIS_TIER,
                self.settings.source_datacenter,
                copy.topic,
                copy.partition,
                error.copy_end,
                error.source_start,
                reason,
            )
            if gap not in self._gaps_said:
                self._gaps_to_say[gap] = None
        return (
            f"{reason}. A copy has no holes: once its loads are done, run `headrace mirror accept-gap "
            f"{copy.topic} {copy.partition} --source {self.settings.source_datacenter}`; the copy then drops "
            f"what it holds and begins anew at {error.source_start}"
        )

    def _say_gaps(self) -> None:
        """Publish what can never be mirrored any more, so that the audit does not wait for it."""
        if not self._gaps_to_say or self.settings.registry_url is None:
            return
        try:
            if self._publisher is None:
                self._publisher = AuditPublisher(
                    bootstrap=self.settings.target_bootstrap,
                    registry_url=self.settings.registry_url,
                    datacenter=self.settings.target_datacenter,
                    service=self._client_id,
                    topic=ANALYSIS_AUDIT_TOPIC,
                )
            for gap in self._gaps_to_say:
                self._publisher.publish(gap)
            self._publisher.flush()
        except AuditPublishError as error:
            logger.warning("cannot report a gap yet: %s", error)
            return
        self._gaps_said |= self._gaps_to_say.keys()
        self._gaps_to_say.clear()
