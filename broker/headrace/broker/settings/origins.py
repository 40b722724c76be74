"""Where a setting's value comes from: what each place that may set it says, the one that counts first.

These are the synonyms of DescribeConfigs (KIP-226). Source of the numbers: Apache Kafka's
`DescribeConfigsResponse.ConfigSource`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from headrace.broker.settings.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig
from headrace.broker.settings.dynamic import DYNAMIC_SETTINGS
from headrace.broker.settings.replication import MIN_INSYNC, default_min_insync
from headrace.broker.settings.setting import Setting


class ConfigSource(IntEnum):
    """The places that set values here, as DescribeConfigs numbers them."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class Origin(NamedTuple):
    """What one place says of a setting, under the name that the setting has there."""

    name: str
    value: str
    source: ConfigSource


class Explained(NamedTuple):
    """A setting, and what is said of it: the first value counts."""

    setting: Setting
    origins: tuple[Origin, ...]
    is_read_only: bool = False

    @property
    def value(self) -> str:
        return self.origins[0].value

    @property
    def source(self) -> ConfigSource:
        return self.origins[0].source


def of_topic(config: BrokerConfig, own: Mapping[str, str], replica_count: int) -> Iterator[Explained]:
    """Yields all settings of a topic with so many replicas; `own`: those that the topic sets itself."""
    for name, setting in TOPIC_SETTINGS.items():
        set_here = (Origin(name, own[name], ConfigSource.DYNAMIC_TOPIC_CONFIG),) if name in own else ()
        yield Explained(setting, (*set_here, *_inherited(config, setting, replica_count)))


def _inherited(config: BrokerConfig, setting: Setting, replica_count: int) -> Iterator[Origin]:
    name = setting.inherits_from or setting.name
    if name in config.overrides:
        yield Origin(name, config.overrides[name], ConfigSource.STATIC_BROKER_CONFIG)
    default = str(default_min_insync(replica_count)) if name == MIN_INSYNC else setting.default
    yield Origin(name, default, ConfigSource.DEFAULT_CONFIG)


def of_broker(config: BrokerConfig, changed: Mapping[str, str]) -> Iterator[Explained]:
    """Yields all settings of a broker; `changed`: those that were set while it ran."""
    for name, setting in BROKER_SETTINGS.items():
        default = Origin(name, setting.default, ConfigSource.DEFAULT_CONFIG)
        if name in config.overrides:
            given = Origin(name, config.overrides[name], ConfigSource.STATIC_BROKER_CONFIG)
            yield Explained(setting, (given, default), is_read_only=True)
        else:
            yield Explained(setting, (default,), is_read_only=True)
    for name, setting in DYNAMIC_SETTINGS.items():
        default = Origin(name, setting.default, ConfigSource.DEFAULT_CONFIG)
        set_here = (
            (Origin(name, changed[name], ConfigSource.DYNAMIC_BROKER_CONFIG),) if name in changed else ()
        )
        yield Explained(setting, (*set_here, default))


def of_the_broker_alone(setting: Setting, value: str) -> Explained:
    """Returns an entry that no place sets: what the broker itself says."""
    return Explained(setting, (Origin(setting.name, value, ConfigSource.STATIC_BROKER_CONFIG),), True)
