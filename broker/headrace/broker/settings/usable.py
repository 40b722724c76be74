"""Which of a topic's stored settings this broker can use. Another version of headrace may have stored others,
or they are rotten.

One setting that cannot be used must not take the others with it: a topic that is kept for ever would get the
default retention, and a mirror's copy would take what any producer sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.broker.settings.config import TOPIC_SETTINGS, check_topic_config
from headrace.broker.settings.setting import ConfigError

UNTIL_KNOWN: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""What counts in place of a value that cannot be used, where the default might delete what was to be kept."""


def usable(overrides: Mapping[str, str]) -> tuple[dict[str, str], list[ConfigError]]:
    """Returns the settings that can be used, and what is wrong with each of the others. In place of such a
    one `UNTIL_KNOWN` is returned, if it has it.
    """
    found: dict[str, str] = {}
    problems: list[ConfigError] = []
    for name, text in overrides.items():
        try:
            check_topic_config({name: text})
        except ConfigError as error:
            problems.append(error)
            if name in UNTIL_KNOWN:
                found[name] = UNTIL_KNOWN[name]
        else:
            found[name] = text
    return found, problems


def is_mirror(overrides: Mapping[str, str]) -> bool:
    """Whether a topic with these settings is a mirror's copy; False if the setting is invalid."""
    setting = TOPIC_SETTINGS["headrace.mirror"]
    try:
        return bool(setting.parse(overrides.get(setting.name, setting.default)))
    except ConfigError:
        return False
