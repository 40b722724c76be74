"""The brokers that a command asks, and how it says which of them do not answer.

A command that lists prints what it knows, marks what it does not, names the silent brokers on stderr, and
ends with the exit code of an unreachable service.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from headrace.cli.context import bootstrap, datacenter
from headrace.cli.errors import CommandError, ExitCode, print_error
from headrace.cli.suggestions import did_you_mean
from headrace.process.clock import process_age_s

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.asking import SilentBroker
    from headrace.client.cluster import BrokerAddress
    from headrace.client.survey import Survey

COMMAND_MAX_S = 4.0
"""A command that reads ends within 5 seconds, printing included; after a long start it asks for less."""
READ_MAX_S = 3.5
READ_MIN_S = 1.5
START_MAX_S = 20.0
"""A process that is older does not run one command only."""
CHANGE_TIMEOUT_MS = 8_000.0
ReplicationFactorOption = Annotated[
    int | None,
    typer.Option(
        "--replication-factor",
        "-f",
        min=1,
        max=100,
        help="Replicas of each partition; by default 3, or one on each broker if they are fewer.",
    ),
]


def read_timeout_ms() -> float:
    """Returns how long a command may ask the brokers, in all, before it prints what it knows."""
    age_s = process_age_s()
    left_s = COMMAND_MAX_S - age_s if age_s < START_MAX_S else READ_MAX_S
    return 1000 * min(READ_MAX_S, max(READ_MIN_S, left_s))


def reading_until_s() -> float:
    """Returns when, on the monotonic clock, all that a command asks of anybody has ended: see
    `read_timeout_ms`. Whatever the command asks besides the brokers shares this time with them."""
    return time.monotonic() + read_timeout_ms() / 1000


def left_of_s(until_s: float) -> float:
    """Returns how long is left until this moment of the monotonic clock; not less than 0."""
    return max(0.0, until_s - time.monotonic())


class Brokers(NamedTuple):
    """Bootstrap addresses, and the brokers that should be there by id; those are unknown for --bootstrap."""

    bootstrap: str
    known: dict[int, BrokerAddress]


def brokers_of(where: str | None, given: str | None) -> Brokers:
    """Returns the given brokers, or all of the datacenter: one that left the cluster is asked, too."""
    from headrace.client.cluster import parse_bootstrap

    if given:
        return Brokers(bootstrap(where, given), {})
    found = datacenter(where)
    addresses = parse_bootstrap(found.bootstrap_servers)
    return Brokers(found.bootstrap, dict(zip(found.broker_ids, addresses, strict=False)))


@contextmanager
def reading(brokers: Brokers) -> Iterator[Admin]:
    """All that is asked ends in time, also beside a hung broker."""
    from headrace.client.admin import Admin

    timeout_ms = read_timeout_ms()
    with Admin(brokers.bootstrap, timeout_ms=timeout_ms, total_ms=timeout_ms) as admin:
        yield admin


class NoTopicError(CommandError):
    """The brokers do not have the topic."""


@contextmanager
def naming_topic(topic: str, admin: Admin) -> Iterator[None]:
    """Says which topic may be meant, if the brokers do not have this one (`NoTopicError`)."""
    from headrace.client.errors import BrokerError, ClientError, UnknownTopicError
    from headrace.wire.errors import ErrorCode

    try:
        yield
    except ClientError as error:
        is_unknown = isinstance(error, BrokerError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not (is_unknown or isinstance(error, UnknownTopicError)):
            raise
        try:
            known = [name for name in admin.survey(None).topics if name != topic]
        except ClientError:
            known = []
        hint = did_you_mean(topic, known, "headrace topics list")
        raise NoTopicError(f"there is no topic {topic!r}{hint}") from error


@contextmanager
def naming_setting(settings: Iterable[str], admin: Admin) -> Iterator[None]:
    """Says which setting of topics may be meant, if the brokers have none of this name."""
    from headrace.client.errors import BrokerError
    from headrace.client.setting_names import unknown_setting

    try:
        yield
    except BrokerError as error:
        found = unknown_setting(admin, error, settings)
        if found is None:
            raise
        hint = did_you_mean(found.name, found.known, "headrace topics describe TOPIC --json")
        raise CommandError(f"there is no topic setting {found.name!r}{hint}") from error


def answering(survey: Survey) -> str:
    """Returns the brokers of a survey that answered, as bootstrap addresses."""
    return ",".join(map(str, survey.answering))


def exit_if_incomplete(survey: Survey) -> None:
    """Ends the command if a broker does not answer, or a partition is offline, with the code that says so."""
    exit_if_silent(survey.silent)
    if survey.problems:
        raise typer.Exit(ExitCode.NEGATIVE)


def exit_if_silent(silent: Iterable[SilentBroker]) -> None:
    """Ends the command if a broker does not answer: one line for each, and the exit code that says so."""
    lines = [str(each) for each in silent]
    for line in lines:
        print_error(line)
    if lines:
        raise typer.Exit(ExitCode.UNREACHABLE)
