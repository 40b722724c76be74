"""DescribeConfigs: every setting of topics and brokers, and where its value comes from.

A broker's settings end with what its scrub found: a read-only entry for each damaged range of addresses
(`wire.damaged_ranges`). Entries that say what a replica holds between two addresses
(`wire.log_contents`) are given to those that name them. The auditor reads both there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from headrace.broker.bodies import Tree
from headrace.broker.cluster import ClusterView
from headrace.broker.errors import Refused
from headrace.broker.handlers.config_resources import BROKER, TOPIC, check_topic, result_of
from headrace.broker.settings.origins import ConfigSource, Explained, of_broker, of_the_broker_alone
from headrace.broker.settings.setting import STRING, Setting
from headrace.broker.state import BrokerState
from headrace.log.contents import sum_contents
from headrace.log.directory import partition_of
from headrace.log.scrub import ScrubFinding
from headrace.wire.damaged_ranges import DamagedRange
from headrace.wire.errors import ErrorCode
from headrace.wire.log_contents import parse_name
from headrace.wire.messages import Request

CONTENT_BATCHES_MAX: Final = 5_000  # of one request: some 40 ms of one core
RANGE_AS_BATCHES: Final = 25  # what a range costs besides, which lists a directory and opens a file
_CONTENT_DOC: Final = "what this broker's replica holds between two addresses"
_DAMAGE_DOC: Final = "addresses that are damaged on this broker's disk, or were, and why"


def handle(state: BrokerState, request: Request) -> Callable[[], Tree]:
    """Returns how to make the response: every setting with its value and the value's source, and what other
    places say of it, if that is asked for (`include_synonyms`).
    """
    # Each resource is answered once: repeated ones would multiply the response.
    resources = {(each.resource_type, each.resource_name): each for each in request.body.resources}
    documented = getattr(request.body, "include_documentation", False)
    with_synonyms = request.body.include_synonyms
    view = state.view

    def make() -> Tree:
        found = [_described(state, view, each, documented, with_synonyms) for each in resources.values()]
        return {"results": found}

    return make


def _described(
    state: BrokerState, view: ClusterView, resource: Any, documented: bool, with_synonyms: bool
) -> Tree:
    result = result_of(resource)
    wanted = resource.configuration_keys
    names = set(wanted) if wanted else None
    try:
        found = _describe(state, view, resource.resource_type, resource.resource_name)
    except Refused as refused:
        return result | refused.fields
    if resource.resource_type == BROKER and wanted:
        found += _contents(state, wanted)
    configs = [
        _entry(each, documented, with_synonyms)
        for each in found
        if names is None or each.setting.name in names
    ]
    return result | {"configs": configs}


def _describe(state: BrokerState, view: ClusterView, kind: int, name: str) -> list[Explained]:
    if kind == TOPIC:
        topic = view.topics.get(name)
        if topic is None:
            check_topic(name)
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return list(state.topics.explain(topic))
    if kind == BROKER:
        if name not in ("", str(state.broker_id)):
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"this is broker {state.broker_id}: send the request to broker {name}",
            )
        changed = view.broker_configs.get(state.broker_id, {})
        return [*of_broker(state.config, changed), *_damage(state)]
    raise Refused(
        ErrorCode.INVALID_REQUEST, f"resource type {kind}: only topics (2) and brokers (4) have settings"
    )


def _damage(state: BrokerState) -> list[Explained]:
    known = state.damage()
    ranges = [_range(each, is_mended=True) for each in known.mended]
    ranges += [_range(each, is_mended=False) for each in known.found]
    return [
        of_the_broker_alone(Setting(each.name, STRING, "", _DAMAGE_DOC), each.value())
        for each in ranges
        if each is not None
    ]


def _contents(state: BrokerState, names: Iterable[str]) -> list[Explained]:
    """Answers what replicas hold; of many ranges as many as `CONTENT_BATCHES_MAX` allows, one at least."""
    left, found = CONTENT_BATCHES_MAX, []
    for asked in filter(None, map(parse_name, dict.fromkeys(names))):
        if left <= 0:
            break
        directory = state.data_dir / f"{asked.topic}-{asked.partition}"
        summed = sum_contents(directory, asked.start, asked.end, left)
        left -= RANGE_AS_BATCHES + summed.batch_count
        entry = Setting(asked.name, STRING, "", _CONTENT_DOC)
        found.append(of_the_broker_alone(entry, summed.answer.value()))
    return found


def _range(finding: ScrubFinding, *, is_mended: bool) -> DamagedRange | None:
    """Returns None for the log of a topic that is gone, in a folder that was moved aside."""
    name = partition_of(finding.partition)
    if name is None:
        return None
    return DamagedRange(*name, finding.start, finding.end, finding.cause, finding.found_ms, is_mended)


def _entry(explained: Explained, documented: bool, with_synonyms: bool) -> Tree:
    setting = explained.setting
    return {
        "name": setting.name,
        "value": explained.value,
        "read_only": explained.is_read_only,
        "config_source": explained.source,
        "is_default": explained.source == ConfigSource.DEFAULT_CONFIG,
        "is_sensitive": False,
        "synonyms": [
            {"name": name, "value": value, "source": source}
            for name, value, source in (explained.origins if with_synonyms else ())
        ],
        "config_type": setting.kind.number,
        "documentation": setting.doc if documented else None,
    }
