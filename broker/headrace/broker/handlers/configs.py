"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs. Topics' settings change at run time, and those of
brokers that `dynamic_settings` has.

A broker's settings end with what its scrub found: a read-only entry for each damaged range of addresses
(`wire.damaged_ranges`). Entries that say what a replica holds between two addresses
(`wire.log_contents`) are given to those that name them. The auditor reads both there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from headrace.broker.bodies import Tree
from headrace.broker.cluster import ClusterView
from headrace.broker.errors import Refused
from headrace.broker.promise import Promise
from headrace.broker.settings.config import BROKER_SETTINGS, TOPIC_SETTINGS
from headrace.broker.settings.dynamic import DYNAMIC_SETTINGS, SOURCE_DYNAMIC
from headrace.broker.settings.setting import LIST, STRING, Setting
from headrace.broker.state import BrokerState
from headrace.broker.topics import SOURCE_BROKER, SOURCE_DEFAULT
from headrace.coordination.documents import CONFIG_MAX_BYTES
from headrace.log.contents import sum_contents
from headrace.log.directory import partition_of
from headrace.log.scrub import ScrubFinding
from headrace.wire.damaged_ranges import DamagedRange
from headrace.wire.errors import ErrorCode
from headrace.wire.log_contents import parse_name
from headrace.wire.messages import Request
from headrace.wire.topic_names import is_topic_name

TOPIC: Final = 2
BROKER: Final = 4
SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3
CONTENT_BATCHES_MAX: Final = 5_000  # of one request: some 40 ms of one core
SHOWN_WAIT_MAX_S: Final = (
    5.0  # until a change that is stored is seen: ZooKeeper tells of it within milliseconds
)
RANGE_AS_BATCHES: Final = 25  # what a range costs besides, which lists a directory and opens a file
_CONTENT_DOC: Final = "what this broker's replica holds between two addresses"
_DAMAGE_DOC: Final = "addresses that are damaged on this broker's disk, or were, and why"

Config = dict[str, str]


def describe(state: BrokerState, request: Request) -> Callable[[], Tree]:
    """Returns how to make the response: every setting with its value and the value's source."""
    # Each resource is answered once: repeated ones would multiply the response.
    resources = {(each.resource_type, each.resource_name): each for each in request.body.resources}
    documented = getattr(request.body, "include_documentation", False)
    view = state.view

    def make() -> Tree:
        return {"results": [_described(state, view, each, documented) for each in resources.values()]}

    return make


def _described(state: BrokerState, view: ClusterView, resource: Any, documented: bool) -> Tree:
    result = _result(resource)
    wanted = resource.configuration_keys
    names = set(wanted) if wanted else None
    try:
        found = _describe(state, view, resource.resource_type, resource.resource_name)
    except Refused as refused:
        return result | refused.fields
    if resource.resource_type == BROKER and wanted:
        found += _contents(state, wanted)
    configs = [
        _entry(setting, value, source, read_only, documented)
        for setting, value, source, read_only in found
        if names is None or setting.name in names
    ]
    return result | {"configs": configs}


def _result(resource: Any) -> Tree:
    """Returns the beginning of a resource's result: success."""
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "error_code": ErrorCode.NONE,
        "error_message": None,
    }


def _describe(
    state: BrokerState, view: ClusterView, kind: int, name: str
) -> list[tuple[Setting, str, int, bool]]:
    if kind == TOPIC:
        topic = view.topics.get(name)
        if topic is None:
            _check_topic(name)
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        explained = state.topics.explain(topic)
        return [(TOPIC_SETTINGS[setting], value, source, False) for setting, value, source in explained]
    if kind == BROKER:
        if name not in ("", str(state.broker_id)):
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"this is broker {state.broker_id}: send the request to broker {name}",
            )
        config, changed = state.config, view.broker_configs.get(state.broker_id, {})
        fixed = [
            (setting, config.text(key), SOURCE_BROKER if key in config.overrides else SOURCE_DEFAULT, True)
            for key, setting in BROKER_SETTINGS.items()
        ]
        dynamic = [
            (
                each,
                changed.get(key, each.default),
                SOURCE_DYNAMIC if key in changed else SOURCE_DEFAULT,
                False,
            )
            for key, each in DYNAMIC_SETTINGS.items()
        ]
        return fixed + dynamic + _damage(state)
    raise Refused(
        ErrorCode.INVALID_REQUEST, f"resource type {kind}: only topics (2) and brokers (4) have settings"
    )


def _damage(state: BrokerState) -> list[tuple[Setting, str, int, bool]]:
    known = state.damage()
    ranges = [_range(each, is_mended=True) for each in known.mended]
    ranges += [_range(each, is_mended=False) for each in known.found]
    return [
        (Setting(each.name, STRING, "", _DAMAGE_DOC), each.value(), SOURCE_BROKER, True)
        for each in ranges
        if each is not None
    ]


def _contents(state: BrokerState, names: Iterable[str]) -> list[tuple[Setting, str, int, bool]]:
    """Answers what replicas hold; of many ranges as many as `CONTENT_BATCHES_MAX` allows, one at least."""
    left, found = CONTENT_BATCHES_MAX, []
    for asked in filter(None, map(parse_name, dict.fromkeys(names))):
        if left <= 0:
            break
        directory = state.data_dir / f"{asked.topic}-{asked.partition}"
        summed = sum_contents(directory, asked.start, asked.end, left)
        left -= RANGE_AS_BATCHES + summed.batch_count
        entry = Setting(asked.name, STRING, "", _CONTENT_DOC)
        found.append((entry, summed.answer.value(), SOURCE_BROKER, True))
    return found


def _range(finding: ScrubFinding, *, is_mended: bool) -> DamagedRange | None:
    """Returns None for the log of a topic that is gone, in a folder that was moved aside."""
    name = partition_of(finding.partition)
    if name is None:
        return None
    return DamagedRange(*name, finding.start, finding.end, finding.cause, finding.found_ms, is_mended)


def _entry(setting: Setting, value: str, source: int, read_only: bool, documented: bool) -> Tree:
    return {
        "name": setting.name,
        "value": value,
        "read_only": read_only,
        "config_source": source,
        "is_default": source == SOURCE_DEFAULT,
        "is_sensitive": False,
        "synonyms": [],
        "config_type": setting.kind.number,
        "documentation": setting.doc if documented else None,
    }


def alter(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """Serves AlterConfigs: the given settings replace all that were set before."""

    def change(resource: Any, _: Config) -> Config:
        return {setting.name: _given(setting) for setting in resource.configs}

    return _alter(state, request, change)


def alter_incrementally(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """Serves IncrementalAlterConfigs (KIP-339): sets and deletes single settings, and adds words to those
    that are lists, or takes words out, whatever others do to these lists at the same time.
    """

    def change(resource: Any, config: Config) -> Config:
        for setting in resource.configs:
            if setting.config_operation == DELETE:
                config.pop(setting.name, None)
            elif setting.config_operation == SET:
                config[setting.name] = _given(setting)
            elif setting.config_operation in (APPEND, SUBTRACT):
                config[setting.name] = _changed_list(resource.resource_type, config, setting)
            else:
                operation = setting.config_operation
                raise Refused(ErrorCode.INVALID_CONFIG, f"{setting.name}: unknown operation {operation}")
        return config

    return _alter(state, request, change)


def _changed_list(kind: int, config: Config, change: Any) -> str:
    """Returns a list with words added (those that it has not yet), or without some. Raises `Refused`."""
    name = change.name
    known = (DYNAMIC_SETTINGS if kind == BROKER else TOPIC_SETTINGS).get(name)
    if known is not None and known.kind.number != LIST.number:
        raise Refused(ErrorCode.INVALID_CONFIG, f"{name} is no list: only SET and DELETE change it")
    value = _given(change)
    if len(value) > CONFIG_MAX_BYTES:
        raise Refused(
            ErrorCode.POLICY_VIOLATION,
            f"{name}: {len(value)} characters; all settings together have at most {CONFIG_MAX_BYTES} bytes",
        )
    present = config.get(name, "" if known is None else known.default)
    words, given = (dict.fromkeys(filter(None, text.split(","))) for text in (present, value))
    if change.config_operation == APPEND:
        return ",".join(words | given)
    return ",".join(word for word in words if word not in given)


def _given(setting: Any) -> str:
    if setting.value is None:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{setting.name} has a null value; delete it instead")
    value: str = setting.value
    return value


def _check_resource(resource: Any, count: int) -> None:
    """Raises `Refused` for what the request alone shows to be wrong."""
    kind, name = resource.resource_type, resource.resource_name
    names = [setting.name for setting in resource.configs]
    if count > 1 or len(names) != len(set(names)):
        what = f"resource {name!r}" if count > 1 else "a setting"
        raise Refused(ErrorCode.INVALID_REQUEST, f"{what} is named twice in one request")
    if kind == TOPIC and not name:
        raise Refused(ErrorCode.INVALID_REQUEST, "no topic is named")
    if kind == TOPIC:
        _check_topic(name)


def _check_topic(name: str) -> None:
    if not is_topic_name(name):
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"no topic can have the name {name!r}")


def _alter(
    state: BrokerState, request: Request, change: Callable[[Any, Config], Config]
) -> Promise[Tree | Exception]:
    """`change` makes a resource's new configuration from its present one. Responds when this broker sees what
    it has stored, as for new topics: who describes a resource then finds what was set.
    """
    body = request.body
    counts = Counter((each.resource_type, each.resource_name) for each in body.resources)
    changes: list[_Change] = []

    def step(resource: Any) -> Callable[[Refused | None], Tree]:
        def run(refusal: Refused | None) -> Tree:
            result = _result(resource)
            try:
                if refusal is not None:
                    raise refusal
                _check_resource(resource, counts[resource.resource_type, resource.resource_name])
                made = _Change(state, resource, change)
                set_config = _setter(state, resource.resource_type)
                made.stored = set_config(
                    resource.resource_name, made.of_present, validate_only=body.validate_only
                )
                if not body.validate_only:
                    changes.append(made)
            except Refused as refused:
                result |= refused.fields
            return result

        return run

    promise: Promise[Tree | Exception] = Promise()

    def altered(found: list[Tree] | Exception) -> None:
        response = found if isinstance(found, Exception) else {"responses": found}
        until_s = time.monotonic() + SHOWN_WAIT_MAX_S
        state.when(lambda: all(made.is_shown() for made in changes), until_s).then(
            lambda _: promise.resolve(response)
        )

    state.in_steps([step(resource) for resource in body.resources]).then(altered)
    return promise


class _Change:
    """One resource's change: what was there before, what is stored, and whether this broker sees it."""

    def __init__(self, state: BrokerState, resource: Any, change: Callable[[Any, Config], Config]) -> None:
        self._state = state
        self._resource = resource
        self._change = change
        self._before = [self._shown()]
        self.stored: Config = {}

    def of_present(self, present: Config) -> Config:
        self._before.append(dict(present))
        return self._change(self._resource, present)

    def is_shown(self) -> bool:
        """Whether what was stored is seen, or what somebody stored after it."""
        shown = self._shown()
        return shown == self.stored or shown not in self._before

    def _shown(self) -> Config | None:
        view, name = self._state.view, self._resource.resource_name
        if self._resource.resource_type == TOPIC:
            topic = view.topics.get(name)
            return None if topic is None else dict(topic.config)
        known = {str(broker_id): config for broker_id, config in view.broker_configs.items()}
        return dict(known.get(name, {}))


class _SetConfig(Protocol):
    def __call__(self, name: str, change: Callable[[Config], Config], *, validate_only: bool) -> Config: ...


def _setter(state: BrokerState, kind: int) -> _SetConfig:
    if kind == TOPIC:
        return state.topics.set_config
    if kind == BROKER and state.broker_settings is not None:
        return state.broker_settings.set_config
    raise Refused(
        ErrorCode.INVALID_REQUEST, f"resource type {kind}: only topics (2) and brokers (4) have settings"
    )
