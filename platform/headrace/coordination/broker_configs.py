"""Settings of brokers that change while they run: `/config/brokers/<id>`, as Apache Kafka kept them there.

Owns the documents and their change, by compare-and-set. They outlive the broker's session: what is set of a
broker that is down holds when it returns. Does not know which settings there are.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from headrace.coordination import documents, znodes
from headrace.coordination.errors import BadVersionError, CorruptNodeError, NodeExistsError
from headrace.coordination.nodes import Node
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.standing import Watch

logger = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 5

BrokerConfigs = dict[int, dict[str, str]]
"""By broker id, only what was set."""


class BrokerConfigRegistry:
    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def all(self) -> BrokerConfigs:
        """Returns what was set, by broker; leaves out documents that cannot be read, and logs them."""
        ids = documents.numbers(self._session.children_or_empty(znodes.BROKER_CONFIGS))
        nodes = self._session.get_many(map(znodes.broker_config, ids))
        found: BrokerConfigs = {}
        for broker_id, node in zip(ids, nodes, strict=True):
            try:
                config = _parse(broker_id, node)
            except CorruptNodeError as error:
                logger.error("%s; the settings of broker %d are left out", error, broker_id)
                continue
            if config:
                found[broker_id] = config
        return found

    def change(self, broker_id: int, change: Callable[[dict[str, str]], Mapping[str, str]]) -> None:
        """Replaces a broker's settings with the result of `change`, which gets the present ones.

        It is called again if they were changed meanwhile. Raises `BadVersionError` if that happens
        `ATTEMPTS_MAX` times, `CorruptNodeError`, `TooLargeError`, and whatever `change` raises.
        """
        path = znodes.broker_config(broker_id)
        self._session.ensure_path(znodes.BROKER_CONFIGS)
        for _ in range(ATTEMPTS_MAX):
            node = self._session.get_or_none(path)
            present = _parse(broker_id, node)
            wanted = dict(change(dict(present)))
            if wanted == present:
                return
            data = documents.encode_config(path, wanted)
            transaction = self._session.transaction()
            if node is None:
                transaction.create(path, data)
            else:
                transaction.set(path, data, version=node.stat.version)
            try:
                transaction.set(znodes.BROKER_CONFIGS, b"").commit()
                return
            except (BadVersionError, NodeExistsError):
                continue
        raise BadVersionError(f"{path}: others changed it {ATTEMPTS_MAX} times meanwhile")

    def watch(self, callback: Callable[[BrokerConfigs], None]) -> Watch:
        """Calls `callback` with what was set of all brokers, now and after every change; runs in the
        session's callback thread."""
        self._session.ensure_path(znodes.BROKER_CONFIGS)
        return self._session.watch_data(znodes.BROKER_CONFIGS, lambda _: callback(self.all()))


def _parse(broker_id: int, node: Node | None) -> dict[str, str]:
    if node is None:
        return {}
    path = znodes.broker_config(broker_id)
    config = documents.decode(path, node.data).get("config")
    if not isinstance(config, dict) or not all(isinstance(value, str) for value in config.values()):
        raise CorruptNodeError(f"{path}: no config in {node.data[:80]!r}")
    return config
