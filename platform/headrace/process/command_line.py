"""The command line of a process: types of options, logging, signals, limits."""

from __future__ import annotations

import argparse
import logging
import re
import resource
import signal
from collections.abc import Callable
from typing import Final

from headrace.process.logs import LineFormatter
from headrace.process.text import is_host

HostPort = tuple[str, int]

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def split_address(text: str) -> HostPort:
    """Splits HOST:PORT. Raises `ValueError`."""
    host, _, port = text.rpartition(":")
    if not is_host(host.strip("[]")) or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def host_port(text: str) -> HostPort:
    """The type of an option HOST:PORT; port 0 means any free one."""
    try:
        return split_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pattern(text: str) -> re.Pattern[str]:
    """The type of an option REGEX."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def set_up_logging(
    level: int | str = logging.INFO, *, level_width: int = 0, kazoo_level: int = logging.ERROR
) -> None:
    """Logs to standard error; `level_width` pads the level's name, `kazoo_level` is for kazoo's lines."""
    line = f"%(asctime)s %(levelname)-{level_width}s %(name)s: %(message)s"
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(line))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("kazoo").setLevel(kazoo_level)


def on_stop_signals(stop: Callable[[], object]) -> None:
    """Calls `stop` on SIGTERM and SIGINT."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda _number, _frame: stop())


def descriptor_limit() -> int:
    """Returns how many file descriptors this process may have now."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_descriptor_limit() -> int:
    """Allows this process as many file descriptors as it may have; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
