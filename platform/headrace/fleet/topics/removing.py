"""The load of a topic that is deleted: it goes with the last datacenter that had the topic.

As long as one has it, such as the one that mirrors filled, there may be records to load.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from headrace.agent.errors import AgentRefusedError
from headrace.agent.local import find_agent
from headrace.client.admin import Admin
from headrace.client.errors import ClientError
from headrace.site.context import Context

READ_TIMEOUT_MS: Final = 3_500.0


class RemovedLoad(NamedTuple):
    """What became of a load. `still_in`: the datacenters that have the topic, or do not answer."""

    is_removed: bool
    still_in: tuple[str, ...]


def remove_load(context: Context, home: Path, topic: str) -> RemovedLoad | None:
    """Removes the load that this home's agent has, unless a datacenter still has the topic.

    Returns None if there is no such load, or no agent. A load of `topics.yaml` is its owner's to remove.
    Raises the errors of the agent's client.
    """
    agent = find_agent(home)
    if agent is None:
        return None
    with agent:
        try:
            agent.load(topic)
        except AgentRefusedError as error:
            if error.code != "load_unknown":
                raise
            return None
        still_in = tuple(_having(context, topic))
        return RemovedLoad(not still_in and agent.delete_load(topic), still_in)


def _having(context: Context, topic: str) -> Iterator[str]:
    for datacenter in context.datacenters:
        try:
            with Admin(datacenter.bootstrap, timeout_ms=READ_TIMEOUT_MS) as admin:
                if topic in admin.topics():
                    yield datacenter.name
        except ClientError:
            yield datacenter.name
