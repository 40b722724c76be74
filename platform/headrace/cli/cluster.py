"""The brokers that a command asks, and how it says which of them do not answer.

A command that lists prints what it knows, marks what it does not, names the silent brokers on stderr, and
ends with the exit code of an unreachable service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import typer

from headrace.cli.context import bootstrap, datacenter
from headrace.cli.errors import CommandError, ExitCode, print_error
from headrace.cli.suggestions import did_you_mean

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.asking import SilentBroker
    from headrace.client.cluster import BrokerAddress
    from headrace.client.survey import Survey

READ_TIMEOUT_MS = 3_500.0
"""Of one question to one broker: with its start, a command that reads ends within 5 seconds."""
CHANGE_TIMEOUT_MS = 8_000.0


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
def naming_topic(topic: str, admin: Admin) -> Iterator[None]:
    """Says which topic may be meant, if the brokers do not have this one."""
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
        raise CommandError(f"there is no topic {topic!r}{hint}") from error


@contextmanager
def naming_setting(settings: Iterable[str], admin: Admin) -> Iterator[None]:
    """Says which setting of topics may be meant, if the brokers have none of this name."""
    from headrace.client.errors import BrokerError
    from headrace.wire.errors import ErrorCode

    try:
        yield
    except BrokerError as error:
        if error.code is not ErrorCode.INVALID_CONFIG:
            raise
        known = _settings_of_topics(admin)
        unknown = [name for name in settings if name not in known]
        if not known or not unknown:
            raise  # a value that the setting cannot have
        hint = did_you_mean(unknown[0], known, "headrace topics describe TOPIC --json")
        raise CommandError(f"there is no topic setting {unknown[0]!r}{hint}") from error


def _settings_of_topics(admin: Admin) -> list[str]:
    """Returns the names of all settings, which any topic has; none if there is no topic to ask for."""
    from headrace.client.errors import ClientError

    try:
        return next((list(admin.describe_configs(topic)) for topic in admin.topics()), [])
    except ClientError:
        return []


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
