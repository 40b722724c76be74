"""Asks many brokers at once, within one deadline: what they answer, and which of them do not.

One hung broker must not hide what the others know. Its connections are accepted, by its kernel, and nothing
answers on them; so every question here has a bound, and silence is a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from headrace.client.calls import Call
from headrace.client.cluster import BrokerAddress, Cluster
from headrace.client.errors import ClientError, RequestTimedOutError, UnsupportedApiError
from headrace.client.network import Network

ANSWER_MAX_S: Final = 3.5
"""How long all brokers together have for all answers. With its start, a command ends within 5 seconds."""
METADATA_SHARE: Final = 0.7
"""How much of that the first answer, Metadata of any broker, may take."""
NO_ADDRESS: Final = "no name server tells its address"
_CHECK_INTERVAL_S: Final = 0.05


class SilentBroker(NamedTuple):
    """A broker that does not answer. Its id or its address may be unknown; `problem` may be ""."""

    broker_id: int | None
    address: BrokerAddress | None
    problem: str = ""

    def __str__(self) -> str:
        name = "a broker" if self.broker_id is None else f"broker {self.broker_id}"
        if self.address is None:
            return f"{name} is not registered: it is down or hangs"
        return f"{name} at {self.address} does not answer" + (f" ({self.problem})" if self.problem else "")


class Answers(NamedTuple):
    """`bodies`: the responses by broker, in the order of its calls. `errors`: why the others have none."""

    bodies: dict[int, list[Any]]
    errors: dict[int, ClientError | None]


def connect_all(network: Network) -> None:
    """Connects to all bootstrap brokers at once: whichever answers first is asked, not a hung one."""
    for node_id in network.bootstrap:
        network.ready(node_id)


def ask(
    network: Network,
    calls: Mapping[int, Sequence[Call]],
    *,
    deadline_s: float,
    clock: Callable[[], float],
) -> Answers:
    """Sends each broker its calls and waits for all responses, at most until `deadline_s`.

    A broker without calls answers by being ready. One whose connection fails is not tried again. An error of
    None means silence.
    """
    asked = _Asked(network, calls)
    while not asked.done and clock() < deadline_s:
        asked.advance(deadline_s - clock())
        network.poll(max(0.0, min(_CHECK_INTERVAL_S, deadline_s - clock())))
    return asked.answers()


class _Asked:
    def __init__(self, network: Network, calls: Mapping[int, Sequence[Call]]) -> None:
        self._network = network
        self._calls = calls
        self._unsent = set(calls)
        self._left = {node_id: len(each) for node_id, each in calls.items()}
        self._bodies: dict[int, list[Any]] = {node_id: [None] * len(each) for node_id, each in calls.items()}
        self._errors: dict[int, ClientError] = {}

    @property
    def done(self) -> bool:
        return not self._unsent and not any(self._left.values())

    def advance(self, left_s: float) -> None:
        for node_id in sorted(self._unsent):
            if self._network.ready(node_id):
                self._send(node_id, left_s)
            elif (error := self._network.error_of(node_id)) is not None:
                self._fail(node_id, error)

    def _send(self, node_id: int, left_s: float) -> None:
        self._unsent.discard(node_id)
        for at, call in enumerate(self._calls[node_id]):
            answered = partial(self._answered, node_id, at)
            try:
                self._network.send(node_id, call, answered, timeout_s=max(_CHECK_INTERVAL_S, left_s))
            except UnsupportedApiError as error:
                if not call.is_optional:
                    self._fail(node_id, error)
                    return
                answered(None, None)
            except ClientError as error:
                self._fail(node_id, error)
                return

    def _answered(self, node_id: int, at: int, body: Any, error: ClientError | None) -> None:
        if error is not None:
            self._fail(node_id, error)
        elif node_id not in self._errors:
            self._bodies[node_id][at] = body
            self._left[node_id] -= 1

    def _fail(self, node_id: int, error: ClientError) -> None:
        self._unsent.discard(node_id)
        self._left[node_id] = 0
        self._errors.setdefault(node_id, error)

    def answers(self) -> Answers:
        bodies, errors = {}, {}
        for node_id, received in self._bodies.items():
            if node_id in self._unsent or node_id in self._errors or self._left[node_id]:
                errors[node_id] = self._errors.get(node_id)
            else:
                bodies[node_id] = received
        return Answers(bodies, errors)


def everybody(network: Network, cluster: Cluster) -> dict[int, list[Call]]:
    """Returns an entry, without calls, for each registered broker and each other bootstrap address."""
    registered = set(cluster.brokers.values())
    others = [node_id for node_id, address in network.bootstrap.items() if address not in registered]
    return {node_id: [] for node_id in (*cluster.brokers, *others)}


def silent_brokers(
    network: Network, cluster: Cluster, answers: Answers, known: Mapping[int, BrokerAddress]
) -> list[SilentBroker]:
    """Names the brokers without an answer. `known`: ids of addresses that no registered broker has."""
    ids_by_address = {address: broker_id for broker_id, address in known.items()}
    found = []
    for node_id, error in answers.errors.items():
        address = network.bootstrap.get(node_id) or cluster.brokers.get(node_id)
        broker_id = node_id if node_id >= 0 else ids_by_address.get(address) if address else None
        problem = NO_ADDRESS if error is None and network.is_looking_up(node_id) else _problem(error)
        found.append(SilentBroker(broker_id, address, problem))
    return sorted(found, key=str)


def _problem(error: ClientError | None) -> str:
    """Returns the cause at the end of a message: "connection to 127.0.0.1:9092: Connection refused"."""
    if error is None or isinstance(error, RequestTimedOutError):
        return ""
    return str(error).rpartition(": ")[2]
