"""The plan of a new topic: what is there, what is missing, and what contradicts what was asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple

from headrace.coordination.declared import HISTORY, PRODUCERS, REPORTING
from headrace.fleet.topics.present import Present, PresentDatacenter, PresentLoad, PresentTopic
from headrace.fleet.topics.wanted import NewTopic
from headrace.registry.compatibility import Level, incompatibilities
from headrace.warehouse.schedule import LoadSchedule, LoadScheduleError, parse_schedule

PARTITIONS_DEFAULT: Final = 3
MIRROR: Final = "headrace.mirror"
_LOAD_FIELDS: Final = tuple(each.name for each in fields(LoadSchedule))


class What(StrEnum):
    """The parts of a topic, in the order in which they are made."""

    SCHEMA = "schema"
    COMPATIBILITY = "compatibility"
    TOPIC = "topic"
    SCHEMA_COPY = "schema copy"
    MIRROR = "mirror"
    LOAD = "load"
    DAGS = "DAGs"
    CONTRACT_TEST = "contract test"


class Do(StrEnum):
    """What a step does. WAIT: something else makes it, and the step waits until it has."""

    KEEP = "keep"
    MAKE = "make"
    CHANGE = "change"
    WAIT = "wait"
    SKIP = "skip"


class Step(NamedTuple):
    """One part in one place (a datacenter, a host, a file), and what is done about it."""

    what: What
    where: str
    do: Do
    detail: str


@dataclass(frozen=True)
class Plan:
    """`partitions`, `settings`: what new topics are created with. With conflicts nothing may be made."""

    steps: tuple[Step, ...]
    conflicts: tuple[str, ...]
    partitions: int
    settings: Mapping[str, str]

    @property
    def changes(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.do in (Do.MAKE, Do.CHANGE, Do.WAIT))


def decide(wanted: NewTopic, present: Present) -> Plan:
    """Returns the steps in their order, and all conflicts."""
    origins = [each for each in present.datacenters if not each.copied_from]
    copies = [each for each in present.datacenters if each.copied_from]
    numbers = [each.topic.partitions for each in origins if each.topic is not None]
    partitions = wanted.partitions or max(numbers, default=PARTITIONS_DEFAULT)
    settings = _settings(wanted)
    steps: list[Step] = []
    conflicts: list[str] = []
    for each in origins:
        steps += _subject_steps(wanted, each)
        steps.append(_topic_step(each, PresentTopic(partitions, settings, wanted.replication_factor)))
        conflicts += _subject_conflicts(wanted, each)
        conflicts += _topic_conflicts(wanted, each)
    by_name = {each.name: each for each in origins}
    for each in copies:
        steps += _copy_steps(each, by_name, partitions)
        conflicts += _copy_conflicts(wanted, each)
    load, problems = _load_step(wanted, present.load)
    steps.append(load)
    conflicts += problems
    steps.append(_dags_step(present))
    if wanted.contract_test is not None:
        do = Do.KEEP if present.has_contract_test else Do.MAKE
        steps.append(Step(What.CONTRACT_TEST, str(wanted.contract_test), do, "for pytest"))
    return Plan(tuple(steps), tuple(conflicts), partitions, settings)


def _settings(wanted: NewTopic) -> dict[str, str]:
    if wanted.producers in (None, REPORTING):
        return dict(wanted.settings)  # the default, which no topic needs to store
    return {**wanted.settings, PRODUCERS: str(wanted.producers)}


# --- schemas ---


def _subject_steps(wanted: NewTopic, here: PresentDatacenter) -> Iterator[Step]:
    subject = here.subject
    if subject.registered:
        version, schema_id = subject.registered
        detail = f"{wanted.subject} version {version}, id {schema_id}"
        yield Step(What.SCHEMA, here.name, Do.KEEP, detail)
    else:
        last = subject.versions[-1][0] if subject.versions else 0
        after = f", after version {last}" if last else ""
        yield Step(What.SCHEMA, here.name, Do.MAKE, f"{wanted.subject}{after}")
    if wanted.compatibility is not None:
        do = Do.KEEP if subject.own_level == wanted.compatibility else Do.MAKE
        yield Step(What.COMPATIBILITY, here.name, do, wanted.compatibility)


def _subject_conflicts(wanted: NewTopic, here: PresentDatacenter) -> Iterator[str]:
    subject, level = here.subject, wanted.compatibility or here.subject.level
    if subject.own_level is not None and level != subject.own_level:
        yield (
            f"{wanted.subject} of {here.name} has the compatibility {subject.own_level}, not {level}: "
            f"`headrace schemas compatibility {wanted.subject} --set {level} -d {here.name}` changes it"
        )
        level = subject.own_level
    if subject.registered:
        return
    if problems := incompatibilities(Level(level), wanted.schema.text, subject.versions):
        yield (
            f"{here.name} has another schema of {wanted.subject}, and {wanted.schema.path} may not follow "
            f"version {subject.versions[-1][0]} ({level}): {'; '.join(problems[:-1])}. If this is another "
            "kind of event, choose another topic"
        )


# --- topics ---


def _topic_step(here: PresentDatacenter, new: PresentTopic) -> Step:
    if here.topic is None:
        return Step(What.TOPIC, here.name, Do.MAKE, _described(new))
    return Step(What.TOPIC, here.name, Do.KEEP, _described(here.topic))


def _described(topic: PresentTopic) -> str:
    shown = [f"{name}={value}" for name, value in sorted(topic.settings.items()) if name != HISTORY]
    if (replicas := topic.replication_factor) is not None:
        shown.insert(0, f"{replicas} replica{'' if replicas == 1 else 's'}")
    return ", ".join([f"{topic.partitions} partition{'' if topic.partitions == 1 else 's'}", *shown])


def _topic_conflicts(wanted: NewTopic, here: PresentDatacenter) -> Iterator[str]:
    if here.topic is None:
        return
    alter = f"`headrace topics alter {wanted.name} -d {here.name}"
    name = f"topic {wanted.name} of {here.name}"
    if wanted.partitions is not None and wanted.partitions != here.topic.partitions:
        more = wanted.partitions > here.topic.partitions
        way_out = f"{alter} -p {wanted.partitions}` adds partitions" if more else "a topic never gets fewer"
        yield f"{name} has {here.topic.partitions} partitions, not {wanted.partitions}: {way_out}"
    factor = wanted.replication_factor
    if factor is not None and factor != here.topic.replication_factor:
        yield (
            f"{name} has {here.topic.replication_factor} replicas, not {factor}: leave -f out; Kafka's "
            "`kafka-reassign-partitions` changes the number"
        )
    for setting, value in sorted(wanted.settings.items()):
        there = here.topic.settings.get(setting)
        if there != value:
            shown = "the brokers' default" if there is None else there
            yield f"{name} has {setting} {shown}, not {value}: {alter} -c {setting}={value}` changes it"
    declared = here.topic.settings.get(PRODUCERS) or REPORTING
    if wanted.producers is not None and wanted.producers != declared:
        yield (
            f"{name} declares producers {declared}, not {wanted.producers}: "
            f"{alter} --producers {wanted.producers}` changes it"
        )
    if here.topic.settings.get(MIRROR) == "true":
        yield f"{name} is the copy of a mirror that this site does not have: choose another topic"


# --- copies ---


def _copy_steps(
    here: PresentDatacenter, origins: Mapping[str, PresentDatacenter], partitions: int
) -> Iterator[Step]:
    if here.subject.registered:
        version, schema_id = here.subject.registered
        yield Step(What.SCHEMA_COPY, here.name, Do.KEEP, f"version {version}, id {schema_id}")
    else:
        yield Step(What.SCHEMA_COPY, here.name, Do.WAIT, "its registry copies it")
    expected = copy_partitions(here, origins, partitions)
    sources = " and ".join(here.copied_from)
    if here.topic is not None and here.topic.partitions >= expected:
        yield Step(What.MIRROR, here.name, Do.KEEP, f"{here.topic.partitions} partitions of {sources}")
    else:
        yield Step(What.MIRROR, here.name, Do.WAIT, f"{expected} partitions of {sources}, by the mirrors")


def copy_partitions(
    here: PresentDatacenter, origins: Mapping[str, PresentDatacenter], partitions: int
) -> int:
    """Returns how many partitions a copy has at least, once it is complete."""
    found = [origins[name].topic for name in here.copied_from if name in origins]
    return sum(partitions if topic is None else topic.partitions for topic in found)


def _copy_conflicts(wanted: NewTopic, here: PresentDatacenter) -> Iterator[str]:
    if here.topic is not None and here.topic.settings.get(MIRROR) != "true":
        yield (
            f"{here.name} has a topic {wanted.name} of its own, which mirrors do not fill: choose another "
            f"name, or delete it: `headrace topics delete {wanted.name} -d {here.name}`"
        )


# --- the load ---


def _load_step(wanted: NewTopic, present: PresentLoad | None) -> tuple[Step, list[str]]:
    try:
        schedule = parse_schedule(wanted.name, wanted.load_fields)
    except LoadScheduleError as error:
        return Step(What.LOAD, wanted.name, Do.SKIP, ""), [f"--load: {error}"]
    if present is None:
        return Step(What.LOAD, "Airflow", Do.MAKE, _when(schedule)), []
    changed = [
        name
        for name in _LOAD_FIELDS
        if name in wanted.load and getattr(schedule, name) != getattr(present.schedule, name)
    ]
    if not changed:
        where = "Airflow" if present.file is None else str(present.file)
        return Step(What.LOAD, where, Do.KEEP, _when(present.schedule)), []
    if present.file is None:
        return Step(What.LOAD, "Airflow", Do.CHANGE, f"{', '.join(changed)}; {_when(schedule)}"), []
    return Step(What.LOAD, str(present.file), Do.KEEP, _when(present.schedule)), [
        f"{present.file} loads {wanted.name} with {name} {getattr(present.schedule, name)}, not "
        f"{getattr(schedule, name)}: change it there"
        for name in changed
    ]


def merged_load(wanted: NewTopic, present: PresentLoad | None, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields to put: the given ones over those that are there, or else over the defaults."""
    return {**(wanted.load_defaults if present is None else stored), **wanted.load}


def _when(schedule: LoadSchedule) -> str:
    return f"owner {schedule.owner}, " + (f"at {schedule.schedule}" if schedule.schedule else "by hand only")


def _dags_step(present: Present) -> Step:
    dags, names = present.dags, " and ".join(present.dags.paused)
    if dags.problem is not None:
        return Step(What.DAGS, "Airflow", Do.SKIP, dags.problem)
    if all(paused is False for paused in dags.paused.values()):
        return Step(What.DAGS, "Airflow", Do.KEEP, names)
    is_known = all(paused is not None for paused in dags.paused.values())
    return Step(What.DAGS, "Airflow", Do.CHANGE if is_known else Do.MAKE, f"{names}, not paused")
