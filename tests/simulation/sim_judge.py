"""What a world must have kept, judged in its end by what clients saw, and what each replica's disk holds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.coordination import znodes
from headrace.wire.batch import hop
from simulation.sim_clients import BROKERS, TOPIC, Acknowledged
from simulation.sim_logs import Content, content_of
from simulation.sim_product_clients import ProductProducer
from simulation.sim_remade import NAME as REMADE_TOPIC

if TYPE_CHECKING:
    from simulation.sim_world import World

LOSSY: Final = ("rot", "new-disk", "older-disk")
KNOWN_MS: Final = 2_000.0
"""How long a broker must have led before it acknowledged something, that no leader before it could have."""


class Judge:
    """Judges one world, once, when all is healed and in sync."""

    def __init__(self, world: World) -> None:
        assert world.reader is not None
        self._world = world
        self._reader = world.reader
        self.problems: list[str] = []
        self._leader_history: list[tuple[float, int]] = []
        self._unclean_ms = -1.0
        """When the last unclean election was; nothing from before it is promised any more."""

    def judge(self) -> list[str]:
        """Closes the brokers, and returns each promise that was broken."""
        world, reader = self._world, self._reader
        for client in (*world.producers, reader):
            self.problems.extend(client.problems)
        if world.group is not None:
            self.problems.extend(world.group.problems)
        self.problems.extend(world.departures.problems)
        self.problems.extend(self._leaders())
        high_watermark, highest = world.high_watermark(), world.highest
        if high_watermark < highest and self._unclean_ms < 0:
            self.problems.append(f"the high watermark was {highest}, and is {high_watermark} in the end")
        if reader.damaged and not (world.faults.counts.get("rot") or self._unclean_ms >= 0):
            self.problems.append(f"the reader got {reader.damaged} damaged batches, and no disk rotted")
        for broker in world.brokers.values():
            broker.close()
        logs = {number: content_of(world.folder_of(number) / f"{TOPIC}-0") for number in world.brokers}
        self._judge_mirror(logs)
        if world.remade is not None:
            remade = {
                number: content_of(world.folder_of(number) / f"{REMADE_TOPIC}-0").data
                for number in world.brokers
            }
            self.problems.extend(world.remade.judge(remade, is_lossy=self._is_lossy(LOSSY)))
        if world.many is not None:
            self.problems.extend(world.many.judge(is_lossy=self._is_lossy((*LOSSY, "emptied-leader"))))
        if world.audit is not None:
            self.problems.extend(world.audit.judge(world.producers, logs[1].between(0, high_watermark)))
        for content in dict.fromkeys(logs.values()):
            holders = ", ".join(str(number) for number, held in logs.items() if held == content)
            self._judge_log(holders, content, high_watermark)
        start = max(content.start for content in logs.values())
        if len({content.between(start, high_watermark) for content in logs.values()}) > 1:
            self.problems.append(f"the replicas differ below the high watermark {high_watermark}")
        return self.problems

    def _is_lossy(self, kinds: Iterable[str]) -> bool:
        """Whether bytes of a disk were lost for good, by what is careful with the first topic alone."""
        return any(self._world.faults.counts.get(kind) for kind in kinds)

    def _judge_mirror(self, logs: Mapping[int, Content]) -> None:
        mirror = self._world.mirror
        if mirror is None:
            return
        if mirror.halts and not self._world.faults.counts.get("rot"):
            self.problems.append(f"the mirror halted: {mirror.halts[0]}")
        copied = content_of(self._world.folder / "mirror")
        for number, content in logs.items():
            start = max(content.start, copied.start)
            if content.between(start, copied.end) != copied.between(start, copied.end):
                self.problems.append(
                    f"broker {number}: bytes {start} to {copied.end} are not what was mirrored"
                )

    def _judge_log(self, number: str, log: Content, high_watermark: int) -> None:
        """Judges what the logs of one or more brokers hold."""
        if log.end < high_watermark:
            self.problems.append(f"broker {number} ends at {log.end}, below {high_watermark}")
        start, content = log.start, log.between(log.start, high_watermark)
        held: dict[tuple[int, int, int], list[int]] = {}
        last: dict[int, tuple[int, int]] = {}
        for _, header in hop(content):
            numbers = header.producer_epoch, header.base_sequence
            held.setdefault((header.producer_id, *numbers), []).append(header.base_offset)
            if numbers <= last.get(header.producer_id, (-1, -1)):
                self.problems.append(
                    f"broker {number}: producer {header.producer_id} has sequence"
                    f" {numbers} after {last[header.producer_id]}"
                )
            last[header.producer_id] = numbers
        for producer in self._world.producers:
            for each in producer.acknowledged:
                if 0 <= each.offset < start:
                    continue  # it has expired: `Ages` judges that
                offsets = held.get((each.producer, each.epoch, each.sequence), [])
                ages = self._world.ages
                if each.offset < 0 and not offsets and ages is not None and ages.may_have_expired(each):
                    continue
                # What is not promised may lie where an earlier leader has put it, who never said so.
                is_right = offsets == [each.offset] or (each.offset < 0 and len(offsets) == 1)
                if not is_right and (len(offsets) > 1 or self._is_promised(each)):
                    self.problems.append(
                        f"broker {number}: sequence {each.sequence} of producer {each.producer} was"
                        f" acknowledged at offset {each.offset} at {each.at_ms:.0f} ms; the log holds it"
                        f" at {offsets}"
                    )
            if isinstance(producer, ProductProducer) and self._unclean_ms < 0:
                self.problems.extend(
                    f"broker {number}: {each}" for each in producer.judge_order(content, start)
                )
        for address, batch in self._reader.seen.items():
            if self._unclean_ms >= 0:
                break
            if address >= start and log.between(address, address + len(batch)) != batch:
                self.problems.append(f"broker {number}: what the reader saw at address {address} is gone")

    def _is_promised(self, each: Acknowledged) -> bool:
        """Whether a batch must still be there. After an unclean election that is only what a leader of later
        acknowledged; the one before it may go on for a while, and what it says then is lost, too.
        """
        if self._unclean_ms < 0:
            return True
        since_ms = each.at_ms - KNOWN_MS
        return (
            since_ms > self._unclean_ms
            and all(
                leader == each.broker
                for at_ms, leader in self._leader_history
                if since_ms <= at_ms <= each.at_ms
            )
            and self._leader_at(since_ms) == each.broker
        )

    def _leader_at(self, at_ms: float) -> int:
        return next((leader for when_ms, leader in reversed(self._leader_history) if when_ms <= at_ms), -1)

    def _leaders(self) -> list[str]:
        """At most one leader an epoch, and each one in sync or eligible, with the disk on which it got in
        sync, by all that was ever written.
        """
        found: list[str] = []
        leaders: dict[int, int] = {}
        path = znodes.partition_state(TOPIC, 0)
        # Of those in sync, and those that were and are still eligible, the disk on which each one is.
        in_sync: dict[int, str] = {}
        disks: dict[int, str] = {}
        registrations = {znodes.broker(number): number for number in range(1, BROKERS + 1)}
        epoch = 0
        for at_ms, written, data in self._world.zookeeper.history:
            if written in registrations and data:
                number = registrations[written]
                disks[number] = json.loads(data)["directory_id"]
                if in_sync.get(number) == "":
                    in_sync[number] = disks[number]
            if written != path or not data:
                continue
            state = json.loads(data)
            leader = state["leader"]
            self._leader_history.append((at_ms, leader))
            if leader >= 0 and state["leader_epoch"] > epoch:
                epoch = state["leader_epoch"]
                disk = in_sync.get(leader)
                if disk is None or (disk and disk != disks[leader]):
                    self._unclean_ms = at_ms
                    self._world.faults.count("unclean-election")
                    if not self._world.is_unclean:
                        found.append(f"broker {leader} leads and was not in sync ({at_ms:.0f} ms)")
            # The first set was there before its brokers were, and names no disks.
            able = (*state["isr"], *state.get("elr", ()))
            in_sync = {number: in_sync.get(number) or disks.get(number, "") for number in able}
            if state["leader"] >= 0:
                known = leaders.setdefault(state["leader_epoch"], state["leader"])
                if known != state["leader"]:
                    found.append(
                        f"brokers {known} and {state['leader']} both lead in epoch {state['leader_epoch']}"
                        f" ({at_ms:.0f} ms)"
                    )
        return found
