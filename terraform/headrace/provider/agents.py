"""The hosts' agents, as the provider's configuration names them.

Owns the way from a host's key to a client. Without configuration there is one host, `local`: the agent that
keeps `$HEADRACE_HOME` (or `.headrace` here), by what it has left there.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from headrace.provider.values import (
    ResourceError,
    Trouble,
    Values,
    is_known,
    listed,
)
from headrace.site.errors import SiteError
from headrace.site.variables import HOME_VARIABLE

if TYPE_CHECKING:
    from headrace.agent.client import AgentClient

LOCAL: Final = "local"
HOSTS_MAX: Final = 1000


class Agent(NamedTuple):
    """How one agent is reached. None: by what it has left in the home on this machine."""

    url: str
    token: str | None
    token_file: str | None
    certificate_file: str | None


class NotYetKnownError(Exception):
    """What the provider is told of this host depends on something that is not made yet."""


class Agents:
    """All hosts of the provider's configuration. Clients are made when first asked for, and kept."""

    def __init__(self, config: Values) -> None:
        """`config`: what `check` has found right, as far as it is known."""
        self._lock = threading.Lock()
        self._clients: dict[str, AgentClient] = {}
        self._home = Path(
            _text(config.get("home")) or os.environ.get(HOME_VARIABLE) or ".headrace"
        ).expanduser()
        said = config.get("agents")
        self._all_known = is_known(said) or isinstance(said, Mapping)
        hosts = said if isinstance(said, Mapping) else {}
        self._agents = {host: Agent(**each) if is_known(each) else None for host, each in hosts.items()}
        self._is_local = said is None

    @property
    def hosts(self) -> list[str]:
        return [LOCAL] if self._is_local else list(self._agents)

    def check_host(self, host: str) -> None:
        """Raises `ResourceError` for a host that the provider is not told of."""
        if self._all_known and host not in self.hosts:
            raise ResourceError(
                Trouble(
                    f"The provider knows no host {host!r}",
                    f"Its `agents` has {listed(self.hosts) or 'none'}. Name one, or add this one there.",
                    ("host",),
                )
            )

    def client(self, host: str) -> AgentClient:
        """Raises `ResourceError`, and `NotYetKnownError` while a plan cannot know where the agent is."""
        self.check_host(host)
        if not self._all_known or (not self._is_local and self._agents[host] is None):
            raise NotYetKnownError(host)
        with self._lock:
            if host not in self._clients:
                self._clients[host] = self._made(host)
            return self._clients[host]

    def client_now(self, host: str) -> AgentClient:
        """The same for an apply and a refresh, where everything must be known. Raises `ResourceError`."""
        try:
            return self.client(host)
        except NotYetKnownError as error:
            raise ResourceError(
                Trouble(
                    f"It is not known yet where the agent of host {host} is",
                    "The provider's `agents` depends on something that is not made yet. Apply that first, "
                    "with -target.",
                )
            ) from error

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _made(self, host: str) -> AgentClient:
        # A sixth of a second of importing, which a validation does not need.
        from headrace.agent.client import AgentClient, pinned

        if self._is_local:
            return self._found_in_home()
        agent = self._agents[host]
        assert agent is not None
        token = agent.token or _read(host, "token_file", agent.token_file).strip()
        tls = None
        if agent.certificate_file is not None:
            path = Path(agent.certificate_file).expanduser()
            try:
                tls = pinned(path)
            except (OSError, ssl.SSLError) as error:
                raise _unreadable(host, "certificate_file", path, str(error)) from error
        return AgentClient(agent.url, token, tls=tls)

    def _found_in_home(self) -> AgentClient:
        from headrace.agent.local import find_agent

        try:
            client = find_agent(self._home)
        except SiteError as error:
            raise ResourceError(Trouble("This machine's agent cannot be used", str(error))) from error
        if client is None:
            raise ResourceError(
                Trouble(
                    f"No agent keeps {self._home.absolute()}",
                    "The provider is told of no `agents`, so it asks the one of this machine. Start it: "
                    f"HEADRACE_HOME={self._home.absolute()} headrace agent; or say in the provider's "
                    "configuration where the agents are.",
                )
            )
        return client


def check(config: Values) -> list[Trouble]:
    """What is wrong with `agents` in the provider's configuration."""
    troubles: list[Trouble] = []
    agents = config.get("agents")
    if not isinstance(agents, Mapping):
        return []
    if not agents:
        troubles.append(Trouble("agents is empty", "Name one host at least, or leave it out.", ("agents",)))
    for host, each in agents.items():
        if isinstance(each, Mapping):
            troubles += _check_agent(host, each)
    return troubles


def _check_agent(host: str, said: Mapping[str, Any]) -> list[Trouble]:
    troubles = []
    url = said.get("url")
    if isinstance(url, str):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            text = f"Host {host} says {url!r}; an agent's URL is such as https://10.0.0.5:8084."
            troubles.append(Trouble("This is no URL of an agent", text, ("agents",)))
    token, file = said.get("token"), said.get("token_file")
    if (token is None) == (file is None):
        both = "both `token` and `token_file`" if token is not None else "neither `token` nor `token_file`"
        text = f"Host {host} has {both}. The agent keeps its token in its home, in agent/token."
        troubles.append(Trouble("An agent is asked with one token", text, ("agents",)))
    return troubles


def _read(host: str, attribute: str, name: str | None) -> str:
    assert name is not None
    path = Path(name).expanduser()
    try:
        return path.read_text()
    except OSError as error:
        raise _unreadable(host, attribute, path, error.strerror or str(error)) from error


def _unreadable(host: str, attribute: str, path: Path, reason: str) -> ResourceError:
    return ResourceError(
        Trouble(
            f"{attribute} of host {host} cannot be used",
            f"{path.absolute()}: {reason}. The agent's home holds the token in agent/token.",
        )
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
