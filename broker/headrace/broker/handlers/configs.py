"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs. Topics' settings change at run time, brokers' do
not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.broker.bodies import Tree
from headrace.broker.config import BROKER_SETTINGS, TOPIC_SETTINGS, Setting
from headrace.broker.errors import Refused
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.broker.topics import SOURCE_BROKER, SOURCE_DEFAULT
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

TOPIC: Final = 2
BROKER: Final = 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(state: BrokerState, request: Request) -> Tree:
    """Every setting with its value and where that comes from."""
    results = []
    for resource in request.body.resources:
        answer: Tree = {
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "error_code": ErrorCode.NONE,
            "error_message": None,
        }
        try:
            found = _describe(state, resource.resource_type, resource.resource_name)
        except Refused as refused:
            results.append(answer | {"error_code": refused.code, "error_message": refused.message})
            continue
        wanted = resource.configuration_keys
        answer["configs"] = [
            _entry(setting, value, source, read_only)
            for setting, value, source, read_only in found
            if not wanted or setting.name in wanted
        ]
        results.append(answer)
    return {"results": results}


def _describe(state: BrokerState, kind: int, name: str) -> list[tuple[Setting, str, int, bool]]:
    if kind == TOPIC:
        topic = state.view.topics.get(name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        explained = state.topics.explain(topic.config)
        return [(TOPIC_SETTINGS[setting], value, source, False) for setting, value, source in explained]
    if kind == BROKER:
        if name not in ("", str(state.broker_id)):
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"this is broker {state.broker_id}: ask broker {name} itself"
            )
        config = state.config
        return [
            (setting, config.text(each), SOURCE_BROKER if each in config.overrides else SOURCE_DEFAULT, True)
            for each, setting in BROKER_SETTINGS.items()
        ]
    raise Refused(
        ErrorCode.INVALID_REQUEST, f"resource type {kind}: only topics (2) and brokers (4) have settings"
    )


def _entry(setting: Setting, value: str, source: int, read_only: bool) -> Tree:
    return {
        "name": setting.name,
        "value": value,
        "read_only": read_only,
        "config_source": source,
        "is_default": source == SOURCE_DEFAULT,
        "is_sensitive": False,
        "synonyms": [],
        "config_type": setting.kind.number,
        "documentation": setting.doc,
    }


def alter(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """AlterConfigs: the settings named replace all that were set before."""

    def wanted(resource: Any) -> Callable[[dict[str, str]], dict[str, str]]:
        return lambda _: {each.name: each.value for each in resource.configs if each.value is not None}

    return _alter(state, request, wanted)


def alter_incrementally(state: BrokerState, request: Request) -> Promise[Tree | Exception]:
    """IncrementalAlterConfigs (KIP-339): set and delete single settings."""

    def wanted(resource: Any) -> Callable[[dict[str, str]], dict[str, str]]:
        def change(config: dict[str, str]) -> dict[str, str]:
            for each in resource.configs:
                if each.config_operation == DELETE:
                    config.pop(each.name, None)
                elif each.config_operation == SET and each.value is not None:
                    config[each.name] = each.value
                else:
                    raise Refused(
                        ErrorCode.INVALID_CONFIG,
                        f"{each.name}: only SET (with a value) and DELETE are supported",
                    )
            return config

        return change

    return _alter(state, request, wanted)


def _alter(
    state: BrokerState, request: Request, wanted: Callable[[Any], Callable[[dict[str, str]], dict[str, str]]]
) -> Promise[Tree | Exception]:
    body = request.body

    def run() -> list[Tree]:
        answers = []
        for resource in body.resources:
            answer: Tree = {
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "error_code": ErrorCode.NONE,
                "error_message": None,
            }
            try:
                if resource.resource_type != TOPIC:
                    raise Refused(
                        ErrorCode.INVALID_REQUEST,
                        "only topics' settings can change; restart a broker with --set to change its own",
                    )
                state.topics.set_config(
                    resource.resource_name, wanted(resource), validate_only=body.validate_only
                )
            except Refused as refused:
                answer |= {"error_code": refused.code, "error_message": refused.message}
            answers.append(answer)
        return answers

    promise: Promise[Tree | Exception] = Promise()
    state.later(run).then(
        lambda done: promise.resolve(done if isinstance(done, Exception) else {"responses": done})
    )
    return promise
