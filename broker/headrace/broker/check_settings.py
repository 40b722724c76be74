"""`python -m headrace.broker.check_settings NAME=VALUE …`: what a broker would say of these settings.

Prints a JSON list of `{"setting": …, "problem": …}`, empty if all are right. Starts no broker: for those who
put a broker's configuration somewhere, before it is started with it.
"""

from __future__ import annotations

import difflib
import json
import sys

from headrace.broker.settings.config import BROKER_SETTINGS
from headrace.broker.settings.setting import ConfigError


def problems_of(settings: dict[str, str]) -> list[dict[str, str]]:
    """The settings that a broker does not have, or whose value it refuses."""
    problems = []
    for name, text in settings.items():
        setting = BROKER_SETTINGS.get(name)
        if setting is None:
            similar = difflib.get_close_matches(name, BROKER_SETTINGS, n=1)
            hint = f"; did you mean {similar[0]}?" if similar else " (docs/settings.md lists all)"
            problems.append({"setting": name, "problem": f"there is no such broker setting{hint}"})
            continue
        try:
            setting.parse(text)
        except ConfigError as error:
            problem = str(error).removeprefix(f"{name}={text!r}: ").removeprefix(f"{name}={text}: ")
            problems.append({"setting": name, "problem": problem})
    return problems


def main(arguments: list[str]) -> int:
    pairs = (argument.partition("=") for argument in arguments)
    json.dump(problems_of({name: text for name, _, text in pairs}), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
