"""Which of a topic's stored settings this broker can use. Another version of headrace may have stored others,
or they are rotten.

One setting that cannot be used must not take the others with it: a topic that is kept for ever would get the
default retention, and a mirror's copy would take what any producer sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.broker.settings import cleanup
from headrace.broker.settings.config import TOPIC_SETTINGS, check_topic_config
from headrace.broker.settings.setting import ConfigError

KEEPS_ALL: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
UNTIL_KNOWN: Final[Mapping[str, Mapping[str, str]]] = {
    **{name: {name: value} for name, value in KEEPS_ALL.items()},
    cleanup.NAME: KEEPS_ALL,
}
"""The settings that count while a value cannot be used whose default might delete what was to be kept."""


def usable(overrides: Mapping[str, str]) -> tuple[dict[str, str], list[ConfigError]]:
    """Returns the settings that can be used, and what is wrong with each of the others, in whose place
    `UNTIL_KNOWN` stands.
    """
    found: dict[str, str] = {}
    until_known: dict[str, str] = {}
    problems: list[ConfigError] = []
    for name, text in overrides.items():
        try:
            check_topic_config({name: text})
        except ConfigError as error:
            problems.append(error)
            until_known |= UNTIL_KNOWN.get(name, {})
        else:
            found[name] = text
    return found | until_known, problems


def is_mirror(overrides: Mapping[str, str]) -> bool:
    """Whether a topic with these settings is a mirror's copy; False if the setting is invalid."""
    setting = TOPIC_SETTINGS["headrace.mirror"]
    try:
        return bool(setting.parse(overrides.get(setting.name, setting.default)))
    except ConfigError:
        return False
