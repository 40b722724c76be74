"""Which setting of a topic is meant by a name that the brokers refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headrace.client.admin import Admin
from headrace.client.errors import BrokerError, ClientError
from headrace.wire.errors import ErrorCode


class UnknownSetting(NamedTuple):
    """The first name that no topic has as a setting, and those that topics have."""

    name: str
    known: list[str]


def unknown_setting(admin: Admin, error: BrokerError, settings: Iterable[str]) -> UnknownSetting | None:
    """Returns the unknown setting that brokers refused; None if they refused another thing, such as a value,
    or have no topic to ask for its settings.
    """
    if error.code is not ErrorCode.INVALID_CONFIG:
        return None
    try:
        known = next((list(admin.describe_configs(topic)) for topic in admin.topics()), [])
    except ClientError:
        return None
    unknown = [name for name in settings if name not in known]
    return UnknownSetting(unknown[0], known) if known and unknown else None
