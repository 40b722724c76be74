"""The settings of a broker that change while it runs: which there are, and how they are set.

Owns the table and the checks; `coordination.broker_configs` stores them. Any broker may set those of any
other, also of one that is down: a dead broker is drained, too. Every broker sees them by its watch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from headrace.broker.errors import Refused
from headrace.broker.settings.replication import FOLLOWER_RATE, LEADER_RATE
from headrace.broker.settings.setting import BOOLEAN, ConfigError, Setting
from headrace.coordination.broker_configs import BrokerConfigRegistry
from headrace.coordination.documents import INT32_MAX
from headrace.coordination.errors import CoordinationError, TooLargeError
from headrace.replication.throttling import Quota
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

DRAINED: Final = Setting(
    "headrace.drained",
    BOOLEAN,
    "false",
    "whether new partitions are placed on other brokers only; `headrace brokers drain` sets it",
)
DYNAMIC_SETTINGS: Final = {each.name: each for each in (DRAINED, LEADER_RATE, FOLLOWER_RATE)}

Config = dict[str, str]
Change = Callable[[Config], Config]


def is_drained(config: Mapping[str, str]) -> bool:
    """Whether a broker with these settings gets no new replicas."""
    return config.get(DRAINED.name, DRAINED.default).lower() == "true"


class Throttles:
    """How fast this broker sends to, and fetches for, replicas that are throttled (KIP-73)."""

    def __init__(self) -> None:
        self.leader = Quota()
        self.follower = Quota()

    def configure(self, config: Mapping[str, str], now_ms: float) -> None:
        """Takes the rates of this broker's settings; without a valid one there is no bound."""
        for quota, setting in ((self.leader, LEADER_RATE), (self.follower, FOLLOWER_RATE)):
            try:
                rate = setting.parse(config.get(setting.name, setting.default))
            except ConfigError as error:
                logger.error("%s; there is no bound", error)
                rate = setting.parse(setting.default)
            if rate != quota.bytes_per_s:
                quota.set_rate(rate, now_ms)
                bound = f"{rate} bytes/s" if quota.is_bounded else "without a bound"
                logger.info("%s: %s", setting.name, bound)


class BrokerSettings:
    """`set_config` blocks: it is called on control threads. `known` returns the ids of all brokers that are
    alive, have replicas, or have settings.
    """

    def __init__(self, registry: BrokerConfigRegistry, known: Callable[[], Collection[int]]) -> None:
        self._registry = registry
        self._known = known

    def set_config(self, name: str, change: Change, *, validate_only: bool) -> Config:
        """Replaces the settings of the broker that `name` names, and returns what is stored. Raises
        `Refused`.
        """
        broker_id = self._broker(name)
        stored: Config = {}

        def checked(present: Config) -> Config:
            nonlocal stored
            before, wanted = dict(present), change(present)
            check(wanted)
            stored = before if validate_only else wanted
            return stored

        try:
            self._registry.change(broker_id, checked)
        except ConfigError as error:
            raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from None
        except TooLargeError as error:
            raise Refused(ErrorCode.POLICY_VIOLATION, str(error)) from None
        except CoordinationError as error:
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, str(error)) from None
        if not validate_only:
            logger.info("broker %d: settings changed by a client", broker_id)
        return stored

    def _broker(self, name: str) -> int:
        known = self._known()
        is_number = name.isascii() and name.isdecimal() and len(name) <= len(str(INT32_MAX))
        # "01" is another name: a request that names both would say two things of one broker.
        if not is_number or str(int(name)) != name or int(name) not in known:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"there is no broker {name[:40]!r}: name one of {sorted(known)}; settings of all brokers at "
                "once are not supported",
            )
        return int(name)


def check(config: Mapping[str, str]) -> None:
    """Raises `Refused` for a setting that cannot change while a broker runs, `ConfigError` for a value out of
    range.
    """
    for name, text in config.items():
        if name not in DYNAMIC_SETTINGS:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"{name} does not change while a broker runs: restart it with --set; those that do: "
                f"{', '.join(DYNAMIC_SETTINGS)}",
            )
        DYNAMIC_SETTINGS[name].parse(text)
