"""Where the value of a setting comes from: the synonyms of DescribeConfigs. Values only."""

from __future__ import annotations

from headrace.broker.settings.config import BrokerConfig
from headrace.broker.settings.dynamic import DRAINED
from headrace.broker.settings.origins import ConfigSource, Explained, of_broker, of_topic
from headrace.broker.settings.replication import MIN_INSYNC

NAME, OF_BROKER = "segment.bytes", "log.segment.bytes"


def of_segments(config: BrokerConfig, own: dict[str, str]) -> Explained:
    (found,) = (each for each in of_topic(config, own, 3) if each.setting.name == NAME)
    return found


def test_a_topics_own_value_hides_the_brokers_and_that_hides_the_default() -> None:
    plain, given = BrokerConfig(), BrokerConfig({OF_BROKER: "2097152"})
    default = (OF_BROKER, plain.text(OF_BROKER), ConfigSource.DEFAULT_CONFIG)
    of_the_broker = (OF_BROKER, "2097152", ConfigSource.STATIC_BROKER_CONFIG)
    own = (NAME, "1048576", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    for config, of_topic_itself, expected in (
        (plain, {}, (default,)),
        (given, {}, (of_the_broker, default)),
        (given, {NAME: "1048576"}, (own, of_the_broker, default)),
        (plain, {NAME: "1048576"}, (own, default)),
    ):
        found = of_segments(config, of_topic_itself)
        assert found.origins == expected
        assert (found.value, found.source) == expected[0][1:]


def test_the_default_of_replicas_in_sync_is_the_one_for_so_many_replicas() -> None:
    config = BrokerConfig({MIN_INSYNC: "1"})
    (found,) = (each for each in of_topic(config, {}, 3) if each.setting.name == MIN_INSYNC)
    assert [(each.value, each.source.name) for each in found.origins] == [
        ("1", "STATIC_BROKER_CONFIG"),
        ("2", "DEFAULT_CONFIG"),
    ]


def test_a_brokers_settings_are_read_only_but_for_those_that_change_while_it_runs() -> None:
    explained = {each.setting.name: each for each in of_broker(BrokerConfig(), {DRAINED.name: "true"})}
    drained = explained.pop(DRAINED.name)
    assert [(each.value, each.source.name) for each in drained.origins] == [
        ("true", "DYNAMIC_BROKER_CONFIG"),
        ("false", "DEFAULT_CONFIG"),
    ]
    assert not drained.is_read_only and explained[OF_BROKER].is_read_only
    assert {each.source.name for each in explained.values()} == {"DEFAULT_CONFIG"}
