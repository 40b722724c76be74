"""Puts what `topics.yaml` declares about topics' producers into the topics' own settings, in each datacenter.

Changes only what differs, so that the history which the brokers keep has no empty changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from headrace.client.admin import Admin
from headrace.client.errors import ClientError
from headrace.coordination.declared import PRODUCERS
from headrace.site.site import Datacenter, Site

TIMEOUT_MS: Final = 8_000.0


class Declared(NamedTuple):
    """What became of one topic in one datacenter; `problem` if it does not declare what it should."""

    datacenter: str
    topic: str
    producers: str
    changed: bool = False
    problem: str = ""


def declare(
    site: Site, wanted: Mapping[str, str], connect: Callable[[Datacenter], Admin] | None = None
) -> Iterator[Declared]:
    """Declares `wanted` (topic → producers) in every datacenter where services publish."""
    connect = connect or (lambda datacenter: Admin(datacenter.bootstrap, timeout_ms=TIMEOUT_MS))
    for datacenter in site.sources if wanted else ():
        try:
            with connect(datacenter) as admin:
                yield from _declare_in(datacenter.name, admin, wanted)
        except ClientError as error:
            yield Declared(datacenter.name, ", ".join(wanted), "", problem=f"{datacenter.name}: {error}")


def _declare_in(datacenter: str, admin: Admin, wanted: Mapping[str, str]) -> Iterator[Declared]:
    settings = admin.topic_settings(wanted, (PRODUCERS,))
    for topic, producers in wanted.items():
        if topic not in settings:
            how = f"`headrace topics create {topic} --producers {producers} -d {datacenter}`"
            problem = f"{datacenter} has no topic {topic} yet: {how}"
            yield Declared(datacenter, topic, producers, problem=problem)
            continue
        differs = settings[topic].get(PRODUCERS) != producers
        if differs:
            admin.alter_configs(topic, {PRODUCERS: producers})
        yield Declared(datacenter, topic, producers, changed=differs)
