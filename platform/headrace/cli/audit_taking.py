"""What `headrace audit repair` takes from a datacenter's own log: events that the copy can never hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.audit.repair.repairing import Judged
    from headrace.audit.store.store import AuditStore
    from headrace.warehouse.from_source import SourceLog, WantedRange

from headrace.cli.context import context
from headrace.cli.output import out, plain
from headrace.process.text import counted


class Taking(NamedTuple):
    """The ranges to take from one datacenter's log."""

    source: SourceLog
    ranges: list[WantedRange]

    def lines(self, topic: str) -> list[str]:
        """Returns one line for each range, for the plan."""
        found = []
        for each in self.ranges:
            events = f"at least {each.record_count:,}" if each.record_count else "the"
            found.append(
                f"{events} events of {topic} at addresses {each.from_address} to {each.to_address} of "
                f"partition {each.partition} from {self.source.datacenter}'s own log into HDFS: the copy "
                "cannot hold them any more"
            )
        return found


def plan_taking(store: AuditStore, topic: str, found: Iterable[Judged], problems: list[str]) -> list[Taking]:
    """Returns what datacenters' logs still have of what the copy lacks; adds to `problems` what is gone."""
    from headrace.audit.gathering.source_ranges import source_ranges
    from headrace.warehouse.from_source import WantedRange

    if context().warehouse is None:
        return []
    wanted: dict[str, dict[WantedRange, None]] = {}
    with store.reading() as connection:
        for evidence, verdict in found:
            for each in source_ranges(connection, evidence, verdict.findings):
                wanted.setdefault(evidence.datacenter, {})[WantedRange(*each)] = None
    takings = [_asked(topic, name, list(ranges), problems) for name, ranges in sorted(wanted.items())]
    return [each for each in takings if each is not None and each.ranges]


def _asked(topic: str, datacenter: str, wanted: Sequence[WantedRange], problems: list[str]) -> Taking | None:
    """Asks a datacenter's brokers what they still have."""
    from headrace.warehouse.errors import known_error
    from headrace.warehouse.from_source import SourceLog, still_there

    here = context().datacenter(datacenter)
    source = SourceLog(datacenter, here.bootstrap, here.registry)
    try:
        found = still_there(topic, source, wanted)
    except Exception as error:
        problem = known_error(error, f"repair {topic}")
        if problem is None:
            raise
        problems.append(problem)
        return None
    for each, part in found:
        gone_to = each.to_address if part is None else part.from_address
        if gone_to > each.from_address:
            problems.append(
                f"{datacenter}'s log no longer holds addresses {each.from_address} to {gone_to} of "
                f"partition {each.partition} of {topic}: if no backup has them, accept the loss by "
                "`headrace audit accept`"
            )
    return Taking(source, [part for _, part in found if part is not None])


def take(store: AuditStore, topic: str, takings: Sequence[Taking], *, quiet: bool) -> None:
    """Takes the ranges into HDFS."""
    from headrace.cli.warehouse import spark, warehouse_with
    from headrace.warehouse import api

    options = warehouse_with(topic, store)

    with spark(f"take {topic}", quiet=quiet) as session:
        for taking in takings:
            results = api.take_topic_ranges(session, options, topic, taking.source, taking.ranges)
            for result in results if not quiet else ():
                is_done = result.sequence is not None
                done = counted(result.rows, "row") if is_done else "nothing was left to take"
                if result.dead_lettered:
                    done += f", {result.dead_lettered:,} could not be decoded"
                out.print(
                    f"took   from {plain(taking.source.datacenter)}'s log: {plain(result.problem or done)}"
                )
