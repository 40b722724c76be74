"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs. Only topics' settings change at run time.

A broker's settings end with what its scrub found: a read-only entry for each damaged range of addresses
(`wire.damaged_ranges`). The auditor reads them there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from headrace.broker.bodies import Tree
from headrace.broker.cluster import ClusterView
from headrace.broker.config import BROKER_SETTINGS, TOPIC_SETTINGS
from headrace.broker.errors import Refused
from headrace.broker.promise import Promise
from headrace.broker.setting import STRING, Setting
from headrace.broker.state import BrokerState
from headrace.broker.topics import SOURCE_BROKER, SOURCE_DEFAULT
from headrace.log.directory import partition_of
from headrace.log.scrub import ScrubFinding
from headrace.wire.damaged_ranges import DamagedRange
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

TOPIC: Final = 2
BROKER: Final = 4
SET: Final = 0
DELETE: Final = 1
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
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        explained = state.topics.explain(topic.config)
        return [(TOPIC_SETTINGS[setting], value, source, False) for setting, value, source in explained]
    if kind == BROKER:
        if name not in ("", str(state.broker_id)):
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"this is broker {state.broker_id}: send the request to broker {name}",
            )
        config = state.config
        return [
            (setting, config.text(key), SOURCE_BROKER if key in config.overrides else SOURCE_DEFAULT, True)
            for key, setting in BROKER_SETTINGS.items()
        ] + _damage(state)
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
    return _alter(
        state,
        request,
        lambda resource, _: {
            setting.name: setting.value for setting in resource.configs if setting.value is not None
        },
    )


def alter_incrementally(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """Serves IncrementalAlterConfigs (KIP-339): sets and deletes single settings."""

    def change(resource: Any, config: Config) -> Config:
        for setting in resource.configs:
            if setting.config_operation == DELETE:
                config.pop(setting.name, None)
            elif setting.config_operation == SET and setting.value is not None:
                config[setting.name] = setting.value
            else:
                raise Refused(
                    ErrorCode.INVALID_CONFIG,
                    f"{setting.name}: only SET (with a value) and DELETE are supported",
                )
        return config

    return _alter(state, request, change)


def _alter(
    state: BrokerState, request: Request, change: Callable[[Any, Config], Config]
) -> Promise[Tree | Exception]:
    """`change` makes a resource's new configuration from its present one."""
    body = request.body

    def step(resource: Any) -> Callable[[Refused | None], Tree]:
        def run(refusal: Refused | None) -> Tree:
            result = _result(resource)
            try:
                if refusal is not None:
                    raise refusal
                if resource.resource_type == BROKER and not _changes(resource):
                    return result  # Kafka's tools take throttles away that nobody has set
                if resource.resource_type != TOPIC:
                    raise Refused(
                        ErrorCode.INVALID_REQUEST,
                        "only topics' settings can change; restart a broker with --set to change its own",
                    )
                state.topics.set_config(
                    resource.resource_name, partial(change, resource), validate_only=body.validate_only
                )
            except Refused as refused:
                result |= refused.fields
            return result

        return run

    return state.later("responses", [step(resource) for resource in body.resources])


def _changes(resource: Any) -> bool:
    """Whether anything is to be set: a broker's own settings never change, so there is nothing to delete."""
    operations = [getattr(setting, "config_operation", SET) for setting in resource.configs]
    return not operations or any(operation != DELETE for operation in operations)
