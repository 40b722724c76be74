"""The settings and addresses of a broker, checked before it is started: at a plan, and when it is put.

A unit that was put before there was such a check is read as it is: its broker refuses to start, and the
host's other units run. Owns how this room learns what the broker's own table of settings says: by running
its check, since only the broker's code knows that table.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from functools import lru_cache
from typing import Final

from headrace.agent.configuration import BrokerConfiguration, Configuration
from headrace.agent.errors import ConfigurationError, FieldProblem
from headrace.process.text import is_wildcard

logger = logging.getLogger(__name__)

CHECK: Final = (sys.executable, "-m", "headrace.broker.check_settings")
CHECK_TIMEOUT_S: Final = 30.0
KEPT_MAX: Final = 256

Settings = tuple[tuple[str, str], ...]


def check_broker_settings(name: str, configuration: Configuration) -> None:
    """Raises `ConfigurationError` that names each setting which a broker would refuse at its start."""
    if not isinstance(configuration, BrokerConfiguration) or not configuration.settings:
        return
    problems = problems_of(tuple(sorted(configuration.settings.items())))
    if problems:
        raise ConfigurationError(
            name,
            [
                FieldProblem(f"settings.{setting}", configuration.settings[setting], problem)
                for setting, problem in problems
            ],
        )


def check_broker_addresses(name: str, configuration: Configuration) -> None:
    """Raises `ConfigurationError` if clients would see an address that nobody can connect to."""
    if not isinstance(configuration, BrokerConfiguration):
        return
    seen = {
        "advertise": configuration.advertise or configuration.listen,
        "front_advertise": configuration.front_advertise,
    }
    problems = [
        FieldProblem(
            field,
            str(address),
            "clients can't connect to every address of a machine; give the one that they are to see",
        )
        for field, address in seen.items()
        if address is not None and is_wildcard(address.host)
    ]
    if problems:
        raise ConfigurationError(name, problems)


@lru_cache(maxsize=KEPT_MAX)
def problems_of(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Setting → problem, for each that is wrong. Nothing if the check cannot run: the start tells then."""
    try:
        done = subprocess.run(
            [*CHECK, *("=".join(pair) for pair in settings)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=True,
        )
        return tuple((str(each["setting"]), str(each["problem"])) for each in json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        logger.warning("the settings of a broker could not be checked beforehand: %s", error)
        return ()
