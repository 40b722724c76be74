"""The client of a host's agent.

Owns the requests and the reading of responses, for the commands of `headrace` and for programs that provision
hosts. Several threads may share a client.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

import httpx

from headrace.agent.answers import report_in, understood, whole
from headrace.agent.errors import AgentRefusedError, AgentUnreachableError, Conflict
from headrace.agent.report import ChangeOutcome, UnitReport

CONNECT_TIMEOUT_S: Final = 10.0
# Longer than the slowest response without a wait: after another change of a unit that stops slowly.
REQUEST_TIMEOUT_S: Final = 100.0
# Shorter than `process.web.KEEP_ALIVE_S`: a request on a connection that the agent is closing gets no answer.
IDLE_MAX_S: Final = 5.0


class Put(NamedTuple):
    """The response to a PUT; `unit` is None for a dry run."""

    outcome: ChangeOutcome
    unit: UnitReport | None


class DataFolder(NamedTuple):
    """The folder of a unit's data, None if it keeps none, and the size of the data."""

    directory: str | None
    size_bytes: int


class AgentClient:
    """One agent. Raises `AgentUnreachableError`, and `AgentRefusedError` if it refuses a request.

    `tls` is an SSL context for an https URL: `pinned(certificate)` trusts that certificate alone, None the
    machine's authorities. `made_by` names the program whose units these are: the agent keeps it with each
    unit that is put.
    """

    def __init__(self, url: str, token: str, *, tls: ssl.SSLContext | None = None, made_by: str = "") -> None:
        self.url = url.rstrip("/")
        self.made_by = made_by
        is_plain = self.url.startswith("http:")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            # Creating a context takes as long as a hundred requests.
            verify=tls or not is_plain,
            limits=httpx.Limits(keepalive_expiry=IDLE_MAX_S),
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

    def health(self, *, answer_max_s: float = REQUEST_TIMEOUT_S) -> dict[str, Any]:
        """Whether the agent and its supervisord answer. `answer_max_s`: how long that may take."""
        return self._json("GET", "/v1/health", answer_max_s=answer_max_s)

    def version(self) -> dict[str, Any]:
        return self._json("GET", "/v1/version")

    def units(self, names: Sequence[str] | None = None, *, with_drift: bool = True) -> list[UnitReport]:
        """Reports the named units (default: all)."""
        params: dict[str, Any] = {"drift": with_drift}
        if names is not None:
            if not names:
                return []
            params["name"] = list(names)
        answer = self._json("GET", "/v1/units", params=params)
        with understood("its list of units"):
            return [report_in(row) for row in answer["units"]]

    def unit(self, name: str, *, wait_s: float = 0.0) -> UnitReport:
        """Reports a unit; with `wait_s`, once it is ready. Refused with `not_ready` after that time."""
        return report_in(self._json("GET", _unit(name), params={"wait_s": wait_s}, wait_s=wait_s))

    def put(
        self, name: str, configuration: Mapping[str, Any], *, wait_s: float = 0.0, dry_run: bool = False
    ) -> Put:
        """Makes the host run the unit with this configuration."""
        params = {"wait_s": wait_s, "dry_run": dry_run, "made_by": self.made_by}
        answer = self._json("PUT", _unit(name), params=params, wait_s=wait_s, json=dict(configuration))
        with understood("its answer to a unit"):
            return Put(ChangeOutcome(answer["outcome"]), None if dry_run else report_in(answer["unit"]))

    def delete(self, name: str) -> bool:
        """Stops and forgets a unit; False if there is none of this name."""
        return self._delete(_unit(name), unknown="unit_unknown")

    def restart(self, name: str, *, wait_s: float = 0.0) -> UnitReport:
        """Restarts one unit by its current definition."""
        answer = self._json("POST", f"{_unit(name)}/restart", params={"wait_s": wait_s}, wait_s=wait_s)
        with understood("its answer to a restart"):
            return report_in(answer["unit"])

    def roll(self, names: Sequence[str], *, wait_s: float = 60.0) -> list[UnitReport]:
        """Restarts units one after another, each once the one before is ready again, within `wait_s`."""
        answer = self._json(
            "POST",
            "/v1/restart",
            params={"wait_s": wait_s},
            json={"units": list(names)},
            wait_s=(wait_s + REQUEST_TIMEOUT_S) * len(names),
        )
        with understood("its answer to a restart"):
            return [report_in(row) for row in answer["units"]]

    def log(self, name: str, *, lines: int = 100) -> str:
        """The last lines of a unit's log."""
        return self._request("GET", f"{_unit(name)}/log", params={"lines": lines}).text

    def data(self, name: str) -> DataFolder:
        """The folder of a unit's data, and its size on disk."""
        answer = self._json("GET", f"{_unit(name)}/data")
        with understood("its report of a folder"):
            return DataFolder(answer["directory"], int(answer["size_bytes"]))

    def load(self, topic: str) -> dict[str, Any]:
        """How this host's Airflow loads the topic. Refused with `load_unknown` if it does not."""
        answer = self._json("GET", _load(topic))
        with understood("its report of a load"):
            return dict(answer["load"])

    def put_load(self, topic: str, load: Mapping[str, Any], *, dry_run: bool = False) -> ChangeOutcome:
        """Makes this host's Airflow load the topic."""
        answer = self._json("PUT", _load(topic), params={"dry_run": dry_run}, json=dict(load))
        with understood("its answer to a load"):
            return ChangeOutcome(answer["outcome"])

    def delete_load(self, topic: str) -> bool:
        """Makes this host's Airflow stop loading the topic; False if it was not loaded."""
        return self._delete(_load(topic), unknown="load_unknown")

    def shut_down(self) -> None:
        """Ends supervisord and the agent. Refused with `units_left` while there are units."""
        self._json("POST", "/v1/shutdown")

    def _delete(self, path: str, *, unknown: str) -> bool:
        try:
            self._json("DELETE", path)
        except AgentRefusedError as error:
            if error.code == unknown:
                return False
            raise
        return True

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = self._request(method, path, **options)
        try:
            data = response.json()
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise AgentUnreachableError(f"not an agent at {self.url}: it answered {response.text[:80]!r}")
        return data

    def _request(
        self,
        method: str,
        path: str,
        *,
        wait_s: float = 0.0,
        answer_max_s: float = REQUEST_TIMEOUT_S,
        **options: Any,
    ) -> httpx.Response:
        timeout = httpx.Timeout(answer_max_s + wait_s, connect=min(CONNECT_TIMEOUT_S, answer_max_s))
        try:
            with self._http.stream(method, path, timeout=timeout, **options) as streamed:
                response = whole(streamed, self.url, answer_max_s + wait_s)
        except httpx.HTTPError as error:
            raise AgentUnreachableError(f"the agent at {self.url} does not answer: {error}") from error
        if response.is_error:
            raise _refusal(response, self.url)
        return response


def pinned(certificate: Path) -> ssl.SSLContext:
    """Trusts this one certificate, whatever its name: for clients that read the agent's own file."""
    context = ssl.create_default_context(cafile=str(certificate))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


def conflicts_in(error: AgentRefusedError) -> list[Conflict]:
    """The conflicts for which a PUT was refused; empty for another error."""
    return [Conflict(**row) for row in error.details.get("conflicts", [])]


def _unit(name: str) -> str:
    return f"/v1/units/{quote(name, safe='')}"


def _load(topic: str) -> str:
    return f"/v1/loads/{quote(topic, safe='')}"


def _refusal(response: httpx.Response, url: str) -> AgentRefusedError:
    try:
        data = response.json()
        code, message = str(data["error"]), str(data["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        data, code = {}, "unknown"
        message = f"not an agent at {url}: it answered {response.status_code}, {response.text[:80]!r}"
    return AgentRefusedError(message, response.status_code, code, data)
