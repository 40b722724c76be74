"""What an election must know of a topic's settings."""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.settings.config import BrokerConfig, TopicConfig
from headrace.broker.settings.usable import usable
from headrace.coordination.topics import ElrBelow, TopicState

ConfigOf = Callable[[TopicState], TopicConfig]
"""Returns a topic's settings. They are parsed, so it is called only where an answer is needed."""


def config_of(broker: BrokerConfig) -> ConfigOf:
    """Returns a topic's settings over this broker's; the default for each that is invalid."""
    return lambda topic: broker.topic_config(usable(topic.config)[0])


def elr_below_of(topic: TopicState, config_of: ConfigOf) -> ElrBelow:
    """Returns below how many in-sync replicas those that leave are eligible to lead, for each partition."""
    return lambda state: config_of(topic).elr_below(state.settled_count)
