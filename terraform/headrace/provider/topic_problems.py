"""Problems of topics: what is wrong in their HCL, and topics that exist already. Pure."""

from __future__ import annotations

import re
from typing import Final

from headrace.coordination import declared
from headrace.provider.clusters import bootstrap_problems
from headrace.provider.problems import Problem, number_problem, seconds_problem
from headrace.provider.values import Values, is_known, without_nulls

# Kafka's own rule for topic names (org.apache.kafka.common.internals.Topic).
NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
MIN_INSYNC: Final = "min.insync.replicas"
# What the fields of Kafka's requests hold.
COUNTS: Final = {
    "partitions": 2**31 - 1,
    "replication_factor": 2**15 - 1,
    "min_insync_replicas": 2**31 - 1,
    "replication_throttle": 2**63 - 1,
}
COMPARED: Final = ("partitions", "replication_factor", "config", "producers")


def fewer_partitions(prior: Values, planned: Values) -> Problem:
    return Problem(
        "A topic cannot have fewer partitions than before",
        f"{prior['name']} has {prior['partitions']} partitions, and the plan has {planned['partitions']}: "
        "the data of the others would be lost, and keys would move to other partitions. Keep the number, or "
        "create another topic and copy the data.",
        ("partitions",),
    )


def exists(planned: Values, topic: Values) -> Problem:
    name = planned["name"]
    asked, found = ({**values, "config": _settings(values)} for values in (planned, topic))
    chosen = [attribute for attribute in COMPARED if is_known(asked[attribute])]
    if all(found.get(attribute) == asked[attribute] for attribute in chosen):
        text = "It is as planned: it was created by an interrupted apply or by someone else."
        return Problem(f"Topic {name} already exists; Terraform adopts it", text, is_warning=True)
    servers = ",".join(planned["bootstrap_servers"])
    return Problem(
        f"Another topic {name} already exists",
        f"It has {topic.get('partitions')} partitions and the settings {found['config']}. Import it with "
        f"`terraform import`, as {servers}/{name}, or choose another name.",
        ("name",),
    )


def _settings(values: Values) -> dict[str, str]:
    """Returns the topic's settings, also the one that has an attribute of its own."""
    settings: dict[str, str] = without_nulls(values.get("config") or {})
    least = values.get("min_insync_replicas")
    return settings if least is None else {**settings, MIN_INSYNC: str(int(least))}


def made_again(prior: Values, topic_id: str) -> Problem:
    return Problem(
        f"Topic {prior['name']} was made again by someone else, and is left alone",
        f"The topic that Terraform had made has the id {prior['topic_id']} and is gone; the one of this name "
        f"has the id {topic_id}. Delete it by `headrace topics delete`, or import it.",
        is_warning=True,
    )


def problems_of(values: Values) -> list[Problem]:
    """Returns the problems of the values that are known."""
    problems = []
    name = values.get("name")
    if isinstance(name, str) and not NAME.fullmatch(name):
        text = f"name is {name!r}; expected 1 to 249 letters, digits, '.', '_' and '-'."
        problems.append(Problem("Invalid topic name", text, ("name",)))
    for attribute, most in COUNTS.items():
        problems += number_problem(values, attribute, "a whole number, 1 or more", least=1, most=most)
    problems += seconds_problem(values, "replication_timeout_s")
    config = values.get("config")
    if isinstance(config, dict) and config.keys() & {declared.PRODUCERS, declared.HISTORY}:
        text = f"Use the attribute producers; {declared.HISTORY} is written by the brokers."
        problems.append(Problem(f"config has {declared.PRODUCERS}", text, ("config",)))
    if (
        isinstance(config, dict)
        and config.get(MIN_INSYNC) is not None
        and values.get("min_insync_replicas") is not None
    ):
        text = f"The attribute and config say the same twice: leave {MIN_INSYNC} out of config."
        problems.append(Problem("Two values of min_insync_replicas", text, ("min_insync_replicas",)))
    return problems + bootstrap_problems(values)


def producers_problems(values: Values) -> list[Problem]:
    """Asked only by a plan, as the brokers are of the settings: terraform plans nothing once a value is
    refused before, and the brokers' answers would be missing."""
    producers = values.get("producers")
    if not isinstance(producers, str) or producers in declared.DECLARATIONS:
        return []
    text = f"producers is {producers!r}; expected {' or '.join(declared.DECLARATIONS)}."
    return [Problem("Invalid producers", text, ("producers",))]
