"""The agents of the hosts that the provider's configuration names.

Owns the way from a host's name to a client. Without configuration there is one host, `local`: the agent whose
home is `$HEADRACE_HOME` (or `.headrace` here) is found through its files there.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from headrace.provider.problems import Problem, ResourceError, join_some
from headrace.provider.values import Values, is_known
from headrace.site.environment_variables import HOME_VARIABLE
from headrace.site.errors import SiteError

if TYPE_CHECKING:
    from headrace.agent.client import AgentClient

LOCAL: Final = "local"
# What agents keep with each unit that Terraform puts: `headrace up` does not remove these unasked.
MADE_BY: Final = "terraform"


class Agent(NamedTuple):
    """How to reach one agent."""

    url: str
    token: str | None
    token_file: str | None
    certificate_file: str | None


class NotYetKnownError(Exception):
    """The provider's configuration of this host depends on something that does not exist yet."""


class Agents:
    """The agents of all configured hosts. Clients are made at first use and kept."""

    def __init__(self, config: Values) -> None:
        """`config`: the provider block after `problems_of`, as far as it is known."""
        self._lock = threading.Lock()
        self._clients: dict[str, AgentClient] = {}
        home = config.get("home")
        self._home = Path(
            (home if isinstance(home, str) else "") or os.environ.get(HOME_VARIABLE) or ".headrace"
        ).expanduser()
        agents = config.get("agents")
        self._all_known = is_known(agents) or isinstance(agents, Mapping)
        by_host = agents if isinstance(agents, Mapping) else {}
        self._agents = {
            host: Agent(**agent) if isinstance(agent, Mapping) and is_known(agent) else None
            for host, agent in by_host.items()
        }
        self._is_local = agents is None

    @property
    def hosts(self) -> list[str]:
        return [LOCAL] if self._is_local else list(self._agents)

    def has(self, host: str) -> bool:
        """Whether the provider's configuration names the host, or may do so once it is known."""
        return not self._all_known or host in self.hosts

    def check_host(self, host: str) -> None:
        """Raises `ResourceError` if the provider's configuration does not name the host."""
        if self._all_known and host not in self.hosts:
            raise ResourceError(
                Problem(
                    f"Unknown host {host!r}",
                    f"The provider's `agents` has {join_some(self.hosts) or 'no host'}. Use one of them, or "
                    "add this host there.",
                    ("host",),
                )
            )

    def client(self, host: str) -> AgentClient:
        """Returns the host's client.

        Raises `ResourceError`, and `NotYetKnownError` while a plan cannot know the agent's address.
        """
        self.check_host(host)
        if not self._all_known or (not self._is_local and self._agents[host] is None):
            raise NotYetKnownError(host)
        with self._lock:
            if host not in self._clients:
                self._clients[host] = self._connect(host)
            return self._clients[host]

    def client_now(self, host: str) -> AgentClient:
        """Like `client`, for an apply or refresh, where all must be known. Raises `ResourceError`."""
        try:
            return self.client(host)
        except NotYetKnownError as error:
            raise ResourceError(
                Problem(
                    f"The address of the agent of host {host} is not known yet",
                    "The provider's `agents` depends on something that does not exist yet. Apply that first, "
                    "with -target.",
                )
            ) from error

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _connect(self, host: str) -> AgentClient:
        # Imported here because it takes 0.15 s, and a validation does not need it.
        from headrace.agent.client import AgentClient, pinned

        if self._is_local:
            return self._find_local()
        agent = self._agents[host]
        assert agent is not None
        token = (
            _read_token(host, agent.token_file) if agent.token is None else _checked_token(host, agent.token)
        )
        tls = None
        if agent.certificate_file is not None:
            path = Path(agent.certificate_file)
            try:
                path = path.expanduser()
                tls = pinned(path)
            except (OSError, ssl.SSLError, RuntimeError) as error:  # `~` of an unknown user is the last
                raise _unusable(host, "certificate_file", path, str(error)) from error
        return AgentClient(agent.url, token, tls=tls, made_by=MADE_BY)

    def _find_local(self) -> AgentClient:
        # Imported here for the same reason.
        from headrace.agent.local import find_agent

        try:
            client = find_agent(self._home, made_by=MADE_BY)
        except SiteError as error:
            raise ResourceError(Problem("This machine's agent cannot be used", str(error))) from error
        if client is None:
            home = self._home.absolute()
            raise ResourceError(
                Problem(
                    f"No agent runs for {home}",
                    "The provider's configuration has no `agents`, so it uses this machine's agent. "
                    f"Start it with HEADRACE_HOME={home} headrace agent, or configure `agents`.",
                )
            )
        return client


def problems_of(config: Values) -> list[Problem]:
    """Returns the problems of `agents` and `home` in the provider's configuration."""
    agents, home = config.get("agents"), config.get("home")
    if not isinstance(agents, Mapping):
        return _home_problems(home) if isinstance(home, str) else []
    if not agents:
        return [Problem("agents is empty", "Name at least one host, or leave `agents` out.", ("agents",))]
    return [
        problem
        for host, agent in agents.items()
        if agent is None or isinstance(agent, Mapping)
        for problem in _agent_problems(host, agent)
    ]


def _agent_problems(host: str, agent: Mapping[str, Any] | None) -> list[Problem]:
    if agent is None:
        return [Problem(f"Host {host} is null", "Leave it out, or say where its agent is.", ("agents",))]
    problems = []
    url = agent.get("url")
    if isinstance(url, str) and not _is_agent_url(url):
        text = f"Host {host} has {url!r}; expected a URL such as https://10.0.0.5:8084."
        problems.append(Problem("Not an agent URL", text, ("agents",)))
    token, file = agent.get("token"), agent.get("token_file")
    if (token is None) == (file is None):
        both = "both `token` and `token_file`" if token is not None else "neither `token` nor `token_file`"
        text = f"Host {host} has {both}. The agent's home holds its token, in agent/token."
        problems.append(Problem("An agent needs exactly one token", text, ("agents",)))
    return problems


def _home_problems(home: str) -> list[Problem]:
    try:
        Path(home).expanduser()
    except RuntimeError:
        return [Problem("Invalid home", f"home is {home!r}: there is no such user.", ("home",))]
    return []


def _is_agent_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_address = parts.port != 0 and bool((parts.hostname or "").encode("idna"))
    except ValueError:  # no port, no address of IPv6, or no name of a host
        return False
    is_text = url.isprintable() and " " not in url
    return is_text and is_address and parts.scheme in ("http", "https")


def _read_token(host: str, name: str | None) -> str:
    assert name is not None
    path = Path(name)
    try:
        path = path.expanduser()
        return _checked_token(host, path.read_text(encoding="ascii"))
    except OSError as error:
        raise _unusable(host, "token_file", path, error.strerror or str(error)) from error
    except (ValueError, RuntimeError) as error:  # a file that is not text; `~` of an unknown user
        problem = "it is not text" if isinstance(error, ValueError) else str(error)
        raise _unusable(host, "token_file", path, problem) from None


def _checked_token(host: str, text: str) -> str:
    """Returns a token as a header can carry it. A file's line ends with a newline, also by `file()`. An error
    of the header would show the token."""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ResourceError(
            Problem(
                f"The token of host {host} is none",
                "A token is one line of printable characters. The agent's home holds it, in agent/token.",
            )
        )
    return token


def _unusable(host: str, attribute: str, path: Path, problem: str) -> ResourceError:
    return ResourceError(
        Problem(
            f"{attribute} of host {host} cannot be used",
            f"{path.absolute()}: {problem}. The agent's home holds its token, in agent/token.",
        )
    )
