"""What administrators ask, from strangers: settings of brokers and topics, reassignments, elections, log
directories. There is no access control, so what is possible happens; what is not is refused, item by item.

Two brokers. An honest producer writes another topic with acks=all meanwhile. Afterwards the brokers' settings
are what the accepted changes add up to, and the attacked topic can be administered back: every partition has
a leader, and takes records with acks=all.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from fix_broker import RawClient
from fix_differences import Asker, name_of
from fuzzing.batches import honest_batch
from fuzzing.fronts import BROKERS, MOVED, PARTITIONS, REPLICATED, Fronts
from fuzzing.honest import LATENCY_MAX_MS, HonestClient
from fuzzing.values import TEXTS, integer
from fuzzing.world import World
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

REQUESTS: Final = 120
WAIT_MAX_S: Final = 60.0
TOPIC_KIND: Final = 2
BROKER_KIND: Final = 4
DRAINED: Final = "headrace.drained"
TOPIC_CONFIGS: Final = ("min.insync.replicas", "max.message.bytes", "retention.ms", "message.validation")
CODES: Final = {code.name for code in ErrorCode}


class Attack:
    """One connection to each broker. `settings`: what was accepted of each broker's, in order."""

    def __init__(self, pair: Fronts, rng: random.Random) -> None:
        self._rng = rng
        self.askers = [Asker(broker.address) for broker in pair.cluster.brokers]
        self.settings: dict[str, dict[str, str]] = {str(number): {} for number in range(1, BROKERS + 1)}
        self.last = ""

    def close(self) -> None:
        for asker in self.askers:
            asker.close()

    def run_one(self) -> None:
        asks = (
            self._alter_incrementally,
            self._alter_incrementally,
            self._alter,
            self._describe,
            self._log_dirs,
            self._reassign,
            self._reassign,
            self._list_reassignments,
            self._elect,
        )
        self._rng.choice(asks)(self._rng.choice(self.askers))

    def _call(self, asker: Asker, key: ApiKey, version: int, tree: dict[str, Any]) -> Any:
        self.last = f"{key.name} {version}: {tree}"[:4_000]
        return asker.ask(key, version, **tree)

    def _resource(self) -> tuple[int, str]:
        rng = self._rng
        kind = rng.choice((BROKER_KIND, BROKER_KIND, TOPIC_KIND, TOPIC_KIND, 0, 8, 16, 127, -1))
        brokers = ("1", "2", "1", "2", "", "3", "01", "+1", " 1", "１", "-1", "2147483648", "1\n", "1" * 300)
        topics = (MOVED, MOVED, "no-such-topic", *TEXTS)
        return kind, rng.choice(brokers if kind == BROKER_KIND or rng.random() < 0.1 else topics)

    def _config(self) -> tuple[str, str | None]:
        rng = self._rng
        name = rng.choice((DRAINED, DRAINED, *TOPIC_CONFIGS, "no.such.setting", *TEXTS))
        values = ("true", "false", "TRUE", "1", "2", "-1", "yes", "", None, "x" * 30_000, str(2**63), "\x00")
        return name, rng.choice(values)

    def _alter_incrementally(self, asker: Asker) -> None:
        rng = self._rng
        resources, wanted = [], []
        for kind, name in {self._resource() for _ in range(rng.choice((1, 1, 2, 20)))}:
            configs = [
                (*self._config(), rng.choice((0, 0, 0, 1, 1, 2, 3, -1, 127)))
                for _ in range(rng.choice((0, 1, 1, 3)))
            ]
            wanted.append(((kind, name), configs))
            named = [{"name": n, "config_operation": op, "value": v} for n, v, op in configs]
            resources.append({"resource_type": kind, "resource_name": name, "configs": named})
        only_checked = rng.random() < 0.3
        tree = {"resources": resources, "validate_only": only_checked}
        response = self._call(asker, ApiKey.INCREMENTAL_ALTER_CONFIGS, rng.choice((0, 1)), tree)
        codes = self._codes(response.responses, [place for place, _ in wanted])
        for place, configs in wanted:
            if codes[place] == "NONE" and not only_checked and place[0] == BROKER_KIND:
                held = self.settings[place[1]]
                for name, value, operation in configs:
                    if operation == 0:
                        assert name == DRAINED and str(value).lower() in ("true", "false"), self.last
                        held[name] = str(value)
                    else:
                        assert operation == 1, self.last
                        held.pop(name, None)

    def _alter(self, asker: Asker) -> None:
        rng = self._rng
        places = list({self._resource() for _ in range(rng.choice((1, 2)))})
        # This API replaces all settings of a topic: those that keep others from writing are left out.
        configs = {name: value for name, value in [self._config()] if name == DRAINED or rng.random() < 0.5}
        resources = [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [{"name": each, "value": value} for each, value in configs.items()],
            }
            for kind, name in places
        ]
        only_checked = rng.random() < 0.3
        tree = {"resources": resources, "validate_only": only_checked}
        response = self._call(asker, ApiKey.ALTER_CONFIGS, rng.choice((0, 1, 2)), tree)
        codes = self._codes(response.responses, places)
        for kind, name in places:
            if codes[kind, name] == "NONE" and not only_checked and kind == BROKER_KIND:
                self.settings[name] = {key: value for key, value in configs.items() if value is not None}

    def _codes(self, results: Any, asked: list[tuple[int, str]]) -> dict[tuple[int, str], str]:
        found = {(int(each.resource_type), each.resource_name): name_of(each.error_code) for each in results}
        assert Counter(found) == Counter(dict.fromkeys(asked, 1)) or found.keys() == set(asked), self.last
        assert len(results) == len(asked) and set(found.values()) <= CODES, f"{found}: {self.last}"
        return found

    def _describe(self, asker: Asker) -> None:
        rng = self._rng
        places = list({self._resource() for _ in range(rng.choice((1, 1, 5)))})
        keys = rng.choice((None, [], [DRAINED], ["no.such"], [rng.choice(TEXTS)] * 50))
        resources = [
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
            for kind, name in places * rng.choice((1, 1, 3))
        ]
        tree = {"resources": resources, "include_synonyms": True, "include_documentation": rng.random() < 0.5}
        response = self._call(asker, ApiKey.DESCRIBE_CONFIGS, rng.choice((1, 3, 4)), tree)
        self._codes(response.results, places)

    def _log_dirs(self, asker: Asker) -> None:
        rng = self._rng
        names = (MOVED, REPLICATED, "no-such-topic", *TEXTS)
        topics = [
            {
                "topic": rng.choice(names),
                "partitions": [self._partition() for _ in range(rng.choice((0, 1, 30)))],
            }
            for _ in range(rng.choice((0, 1, 5)))
        ]
        tree = {"topics": rng.choice((None, topics, topics))}
        response = self._call(asker, ApiKey.DESCRIBE_LOG_DIRS, rng.choice((1, 2, 3, 4)), tree)
        seen = [
            (topic.name, part.partition_index)
            for found in response.results
            for topic in found.topics
            for part in topic.partitions
        ]
        assert len(seen) == len(set(seen)), f"a partition twice: {seen}: {self.last}"
        if tree["topics"] is not None:
            asked = {(each["topic"], part) for each in topics for part in each["partitions"]}
            assert set(seen) <= asked, f"{seen} was not asked for: {self.last}"

    def _partition(self) -> int:
        rng = self._rng
        known = (*range(PARTITIONS), *range(PARTITIONS))
        return rng.choice(known) if rng.random() < 0.7 else rng.choice((77, -1, integer(rng, 32)))

    def _reassign(self, asker: Asker) -> None:
        rng = self._rng
        targets: tuple[Any, ...] = (
            None,
            None,
            [1],
            [2],
            [1, 2],
            [2, 1],
            [],
            [1, 1],
            [99],
            [1, 99],
            [-1],
            [2**31 - 1],
            list(range(1, 200)),
        )
        parts = [
            {"partition_index": part, "replicas": rng.choice(targets)}
            for part in {self._partition() for _ in range(rng.choice((1, 1, 3)))}
        ]
        names = list(dict.fromkeys(rng.choice((MOVED, MOVED, MOVED, "no-such-topic", *TEXTS)) for _ in "12"))
        tree = {"timeout": 1_000, "topics": [{"name": name, "partitions": parts} for name in names]}
        response = self._call(asker, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, tree)
        for topic in response.responses:
            answered = [each.partition_index for each in topic.partitions]
            assert sorted(answered) == sorted(each["partition_index"] for each in parts), self.last
            for each in topic.partitions:
                is_known = topic.name == MOVED and 0 <= each.partition_index < PARTITIONS
                assert is_known or name_of(each.error_code) != "NONE", f"{each}: {self.last}"

    def _list_reassignments(self, asker: Asker) -> None:
        rng = self._rng
        topics = [
            {
                "name": rng.choice((MOVED, *TEXTS)),
                "partition_indexes": [self._partition()] * rng.choice((0, 1, 9)),
            }
        ]
        tree = {"timeout": 1_000, "topics": rng.choice((None, topics))}
        response = self._call(asker, ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, tree)
        assert {topic.name for topic in response.topics} <= {MOVED}, f"{response}: {self.last}"

    def _elect(self, asker: Asker) -> None:
        rng = self._rng
        parts = [self._partition() for _ in range(rng.choice((0, 1, 5)))]
        tree = {
            "election_type": rng.choice((0, 0, 1, 2, -1, 127)),
            "topic_partitions": [{"topic": rng.choice((MOVED, MOVED, *TEXTS)), "partitions": parts}],
            "timeout": 1_000,
        }
        response = self._call(asker, ApiKey.ELECT_LEADERS, rng.choice((1, 2)), tree)
        for topic in response.replica_election_results:
            assert {each.partition_id for each in topic.partition_result} <= set(parts), self.last


def run(world: World, rng: random.Random) -> list[str]:
    """Returns the last request."""
    pair = world.fronts()
    part, leader = next(iter(pair.leaders(REPLICATED).items()))
    honest = HonestClient(pair.cluster[leader].address, REPLICATED, partition=part)
    honest.start()
    attack = Attack(pair, rng)
    try:
        for _ in range(REQUESTS):
            try:
                attack.run_one()
            except EOFError:
                raise AssertionError(f"the connection ended at {attack.last}") from None
        _check_settings(attack)
        _administer_back(pair, attack)
    finally:
        attack.close()
        seen = honest.finish()
    assert seen.fault is None, f"the honest producer of another topic: {seen.fault}"
    longest_ms = seen.percentile_ms(1)
    assert longest_ms <= LATENCY_MAX_MS, f"the honest producer waited {longest_ms:.0f} ms"
    return [attack.last]


def _until(what: Callable[[], Any], expected: Any) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while (found := what()) != expected:
        assert time.monotonic() < deadline, f"{found}, and not {expected}"
        time.sleep(0.05)


def _check_settings(attack: Attack) -> None:
    """Each broker shows what was accepted of its settings, by whichever broker."""
    for number, asker in enumerate(attack.askers, start=1):
        expected = attack.settings[str(number)].get(DRAINED, "false")
        _until(lambda a=asker, n=number: _drained(a, n), expected)  # type: ignore[misc]


def _drained(asker: Asker, number: int) -> str:
    resource = {"resource_type": BROKER_KIND, "resource_name": str(number), "configuration_keys": [DRAINED]}
    tree = {"include_synonyms": False, "include_documentation": False}
    (found,) = asker.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], **tree).results
    (config,) = found.configs
    return str(config.value)


def _administer_back(pair: Fronts, attack: Attack) -> None:
    """What an operator does afterwards, by the same APIs."""
    asker = attack.askers[0]
    places = [(BROKER_KIND, str(number), (DRAINED,)) for number in range(1, BROKERS + 1)]
    resources = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": each, "config_operation": 1, "value": None} for each in configs],
        }
        for kind, name, configs in (*places, (TOPIC_KIND, MOVED, TOPIC_CONFIGS))
    ]
    tree = {"resources": resources, "validate_only": False}
    response = asker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, **tree)
    assert {name_of(each.error_code) for each in response.responses} == {"NONE"}, response
    every = [{"partition_index": part, "replicas": [1, 2]} for part in range(PARTITIONS)]
    tree = {"timeout": 10_000, "topics": [{"name": MOVED, "partitions": every}]}
    response = asker.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, **tree)
    codes = {name_of(each.error_code) for topic in response.responses for each in topic.partitions}
    assert codes == {"NONE"}, response
    asked = {"timeout": 1_000, "topics": None}
    _until(lambda: list(asker.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, **asked).topics), [])
    for part in range(PARTITIONS):
        _until(lambda p=part: _produced(pair, p), "NONE")  # type: ignore[misc]


def _produced(pair: Fronts, part: int) -> str:
    leader = pair.leaders(MOVED)[part]
    if leader not in range(1, BROKERS + 1):
        return f"partition {part} is led by {leader}"
    with RawClient(pair.cluster[leader].address) as client:
        return name_of(client.produce(MOVED, part, honest_batch(b"v", int(time.time() * 1000))).error_code)
