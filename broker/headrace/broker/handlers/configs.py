"""AlterConfigs, IncrementalAlterConfigs. Topics' settings change at run time, and those of brokers that
`settings.dynamic` has.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.handlers.config_resources import BROKER, TOPIC, check_topic, result_of
from headrace.broker.promise import Promise
from headrace.broker.settings.config import TOPIC_SETTINGS
from headrace.broker.settings.dynamic import DYNAMIC_SETTINGS
from headrace.broker.settings.setting import LIST
from headrace.broker.state import BrokerState
from headrace.coordination.documents import CONFIG_MAX_BYTES
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3
SHOWN_WAIT_MAX_S: Final = (
    5.0  # until a change that is stored is seen: ZooKeeper tells of it within milliseconds
)

Config = dict[str, str]


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
        check_topic(name)


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
            result = result_of(resource)
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
