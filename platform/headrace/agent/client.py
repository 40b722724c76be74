"""Talks to the agent of a host.

Owns the requests and the reading of answers, for `headrace up` and its like, and for whoever provisions
hosts. One client may be used by several threads.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

import httpx

from headrace.agent.errors import AgentRefusedError, AgentUnreachableError, Conflict
from headrace.agent.report import ChangeOutcome, UnitReport

CONNECT_TIMEOUT_S: Final = 10.0
# Longer than the slowest answer without a wait: somebody else changes the unit, which then ends slowly.
REQUEST_TIMEOUT_S: Final = 100.0


class Put(NamedTuple):
    """What a PUT has done; `unit` is None for a dry run."""

    outcome: ChangeOutcome
    unit: UnitReport | None


class DataFolder(NamedTuple):
    """Where a unit keeps its data, None for one that keeps none; and how much there is."""

    directory: str | None
    size_bytes: int


class AgentClient:
    """One agent. Raises `AgentUnreachableError`, and `AgentRefusedError` for what it says no to.

    `tls` is an SSL context for an https URL: `pinned(certificate)` trusts that one alone, None the machine's
    authorities.
    """

    def __init__(self, url: str, token: str, *, tls: ssl.SSLContext | None = None) -> None:
        self.url = url.rstrip("/")
        is_plain = self.url.startswith("http:")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            # Making a context costs as much as a hundred requests.
            verify=tls or not is_plain,
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def health(self) -> dict[str, Any]:
        return self._ask("GET", "/v1/health")

    def version(self) -> dict[str, Any]:
        return self._ask("GET", "/v1/version")

    def units(self, names: Sequence[str] | None = None, *, with_drift: bool = True) -> list[UnitReport]:
        """How the named units (default: all) are."""
        params: dict[str, Any] = {"drift": with_drift}
        if names is not None:
            if not names:
                return []
            params["name"] = list(names)
        return [_report(each) for each in self._ask("GET", "/v1/units", params=params)["units"]]

    def unit(self, name: str, *, wait_s: float = 0.0) -> UnitReport:
        """How a unit is; with `wait_s`, once it is ready. Refused with `not_ready` when it never is."""
        return _report(self._ask("GET", _unit(name), params={"wait_s": wait_s}, wait_s=wait_s))

    def put(
        self, name: str, configuration: Mapping[str, Any], *, wait_s: float = 0.0, dry_run: bool = False
    ) -> Put:
        """Makes the host have the unit, told this."""
        params = {"wait_s": wait_s, "dry_run": dry_run}
        said = self._ask("PUT", _unit(name), params=params, wait_s=wait_s, json=dict(configuration))
        return Put(ChangeOutcome(said["outcome"]), None if dry_run else _report(said["unit"]))

    def delete(self, name: str) -> bool:
        """Stops and forgets a unit; False when there is none of this name."""
        try:
            self._ask("DELETE", _unit(name))
        except AgentRefusedError as error:
            if error.code == "unit_unknown":
                return False
            raise
        return True

    def restart(self, name: str, *, wait_s: float = 0.0) -> UnitReport:
        """Restarts one unit as it is defined now."""
        said = self._ask("POST", f"{_unit(name)}/restart", params={"wait_s": wait_s}, wait_s=wait_s)
        return _report(said["unit"])

    def roll(self, names: Sequence[str], *, wait_s: float = 60.0) -> list[UnitReport]:
        """Restarts units one after another, each once the one before is ready again, `wait_s` at most."""
        said = self._ask(
            "POST",
            "/v1/restart",
            params={"wait_s": wait_s},
            json={"units": list(names)},
            wait_s=(wait_s + REQUEST_TIMEOUT_S) * len(names),
        )
        return [_report(each) for each in said["units"]]

    def log(self, name: str, *, lines: int = 100) -> str:
        """The last lines of a unit's log."""
        return self._request("GET", f"{_unit(name)}/log", params={"lines": lines}).text

    def data(self, name: str) -> DataFolder:
        """The unit's folder of data, and what it holds on disk."""
        said = self._ask("GET", f"{_unit(name)}/data")
        return DataFolder(said["directory"], int(said["size_bytes"]))

    def load(self, topic: str) -> dict[str, Any]:
        """How this host's Airflow loads the topic. Refused with `load_unknown` when it does not."""
        return dict(self._ask("GET", _load(topic))["load"])

    def put_load(self, topic: str, said: Mapping[str, Any], *, dry_run: bool = False) -> ChangeOutcome:
        """Lets this host's Airflow load the topic so."""
        answer = self._ask("PUT", _load(topic), params={"dry_run": dry_run}, json=dict(said))
        return ChangeOutcome(answer["outcome"])

    def delete_load(self, topic: str) -> bool:
        """The topic is not loaded any more; False when it was not."""
        try:
            self._ask("DELETE", _load(topic))
        except AgentRefusedError as error:
            if error.code == "load_unknown":
                return False
            raise
        return True

    def shut_down(self) -> None:
        """Ends supervisord and the agent. Refused with `units_left` while there are units."""
        self._ask("POST", "/v1/shutdown")

    def _ask(self, method: str, path: str, *, wait_s: float = 0.0, **options: Any) -> dict[str, Any]:
        answer = self._request(method, path, wait_s=wait_s, **options)
        try:
            said = answer.json()
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise AgentUnreachableError(
                f"what answers at {self.url} is no agent: it says {answer.text[:80]!r}"
            )
        return said

    def _request(self, method: str, path: str, *, wait_s: float = 0.0, **options: Any) -> httpx.Response:
        timeout = httpx.Timeout(REQUEST_TIMEOUT_S + wait_s, connect=CONNECT_TIMEOUT_S)
        try:
            answer = self._http.request(method, path, timeout=timeout, **options)
        except httpx.HTTPError as error:
            raise AgentUnreachableError(f"the agent at {self.url} does not answer: {error}") from error
        if answer.is_error:
            raise _refusal(answer, self.url)
        return answer


def pinned(certificate: Path) -> ssl.SSLContext:
    """Trusts this one certificate, whatever name it has: for who can read it where the agent reads it."""
    context = ssl.create_default_context(cafile=str(certificate))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


def conflicts_in(error: AgentRefusedError) -> list[Conflict]:
    """What a refused PUT could not have; empty when it was refused for another reason."""
    return [Conflict(**each) for each in error.details.get("conflicts", [])]


def _unit(name: str) -> str:
    return f"/v1/units/{quote(name, safe='')}"


def _load(topic: str) -> str:
    return f"/v1/loads/{quote(topic, safe='')}"


def _report(said: Mapping[str, Any]) -> UnitReport:
    try:
        return UnitReport.from_json(said)
    except (KeyError, TypeError, ValueError) as error:
        raise AgentUnreachableError(
            f"the agent is of another version: its report of a unit lacks {error}"
        ) from error


def _refusal(answer: httpx.Response, url: str) -> AgentRefusedError:
    try:
        said = answer.json()
        code, message = str(said["error"]), str(said["message"])
    except (ValueError, KeyError, TypeError):
        said, code = {}, "unknown"
        message = f"what answers at {url} is no agent: {answer.status_code}, {answer.text[:80]!r}"
    return AgentRefusedError(message, answer.status_code, code, said)
