"""Reads what a site has of a topic, and carries out the plan.

Each step may be repeated: two runs at once, and a run after one that was killed, end with the same topic.
Owns the waits for what mirrors and registries copy by themselves, and for Airflow to read its DAGs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.agent.airflow_environment import dags_folder
from headrace.agent.client import AgentClient
from headrace.agent.local import find_agent
from headrace.client.admin import Admin
from headrace.client.errors import BrokerError
from headrace.client.setting_names import unknown_setting
from headrace.fleet.airflow_units import airflow_of
from headrace.fleet.topics.contract_test import contract_test
from headrace.fleet.topics.copies import check_copies
from headrace.fleet.topics.deciding import Do, Plan, Step, What, copy_partitions, merged_load
from headrace.fleet.topics.present import (
    ADMIN_TIMEOUT_MS,
    REGISTRY_ROUNDS,
    Present,
    PresentDags,
    PresentDatacenter,
    origins_of,
    read_datacenter,
    read_load,
    read_subject,
    read_topic,
)
from headrace.fleet.topics.wanted import NewTopic, NewTopicError
from headrace.process.nearest import question
from headrace.registry.client import SchemaRegistryClient
from headrace.site.context import Context, ContextMirror, context_of
from headrace.site.errors import SiteError
from headrace.site.site import Site
from headrace.wire.errors import ErrorCode

COPY_WAIT_MAX_S: Final = 90.0
"""The registry of a mirrored datacenter copies every ten seconds, mirrors look for topics every two."""
POLL_S: Final = 0.3
LOAD_TAG: Final = "load"


class NotCopiedError(SiteError):
    """The topic is made, but a mirror or a registry has not copied it in time."""


class SiteTopics:
    """Makes topics on a site of this machine. A context manager. Raises `SiteError` if it does not run."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.context: Context = context_of(site)
        agent = find_agent(site.home)
        if agent is None:
            raise SiteError(f"nothing runs in {site.home}; start the site with `headrace up`")
        self._agent: AgentClient = agent

    def __enter__(self) -> SiteTopics:
        return self

    def __exit__(self, *_: object) -> None:
        self._agent.close()

    # --- reading ---

    def read(self, wanted: NewTopic) -> Present:
        """Raises the errors of all clients, `TopicsFileError`: nothing is planned from what is not known."""
        return Present(
            tuple(
                read_datacenter(self.context, each, wanted.name, wanted.subject, wanted.schema.text)
                for each in self.context.datacenters
            ),
            read_load(self._agent, wanted.name, topics_file()),
            self._read_dags(wanted.name),
            wanted.contract_test is not None and wanted.contract_test.exists(),
        )

    def _read_dags(self, topic: str) -> PresentDags:
        names = (f"load-{topic}", f"seal-{topic}")
        by_hand = f"`headrace warehouse load {topic}` loads by hand"
        reports = [each for each in self._agent.units(with_drift=False) if each.kind == "airflow"]
        if not reports:
            return PresentDags(dict.fromkeys(names), f"Airflow is not part of this site; {by_hand}")
        if not all(each.is_ready for each in reports):
            return PresentDags(dict.fromkeys(names), f"Airflow is not ready; {by_hand}")
        with airflow_of(self.site) as airflow:
            return PresentDags({name: airflow.is_paused(name) for name in names})

    def refusals(self, wanted: NewTopic, plan: Plan) -> list[str]:
        """What brokers object to in topics that the plan makes: nothing is created."""
        found = []
        for step in plan.changes:
            if step.what is not What.TOPIC:
                continue
            with self._admin(step.where) as admin:
                try:
                    _create_topic(admin, wanted, plan, validate_only=True)
                except BrokerError as error:
                    found.append(f"{step.where}: {error}{_meant(admin, error, plan.settings)}")
        return list(dict.fromkeys(found))

    # --- making ---

    def make(self, wanted: NewTopic, plan: Plan, present: Present) -> Iterator[Step]:
        """Carries out the plan; yields each step once it is done, those without anything to do as they are.

        Raises the errors of all clients, `NotCopiedError`, `HaltedCopyError`, `NewTopicError`: the next run
        finishes.
        """
        makers: dict[What, Callable[[Step], str]] = {
            What.SCHEMA: lambda step: self._register(wanted, step.where),
            What.COMPATIBILITY: lambda step: self._set_level(wanted, step.where),
            What.TOPIC: lambda step: self._create(wanted, plan, step),
            What.SCHEMA_COPY: lambda step: self._wait_for_schema(wanted, step.where),
            What.MIRROR: lambda step: self._wait_for_mirror(wanted, plan, present, step.where),
            What.LOAD: lambda step: self._load(wanted, present, step),
            What.DAGS: lambda step: self._start_dags(wanted.name, step),
            What.CONTRACT_TEST: lambda step: self._write_test(wanted, step),
        }
        for step in plan.steps:
            done = step if step.do in (Do.KEEP, Do.SKIP) else step._replace(detail=makers[step.what](step))
            if step.what is What.MIRROR:
                self._check_copies(wanted.name, step.where)
            yield done

    def _register(self, wanted: NewTopic, where: str) -> str:
        with self._registry(where) as registry:
            registry.register(wanted.subject, wanted.schema.text)
            found = registry.lookup(wanted.subject, wanted.schema.text)
        return f"{wanted.subject} version {found.version}, id {found.schema_id}"

    def _set_level(self, wanted: NewTopic, where: str) -> str:
        assert wanted.compatibility is not None
        with self._registry(where) as registry:
            registry.set_config(wanted.compatibility, wanted.subject)
        return wanted.compatibility

    def _create(self, wanted: NewTopic, plan: Plan, step: Step) -> str:
        with self._admin(step.where) as admin:
            try:
                _create_topic(admin, wanted, plan)
            except BrokerError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                there = read_topic(admin, wanted.name)
                if there is None or (there.partitions, dict(there.settings)) != (
                    plan.partitions,
                    dict(plan.settings),
                ):
                    raise NewTopicError(
                        f"somebody else has just made another topic {wanted.name} in {step.where}: run the "
                        "command again, which compares it"
                    ) from error
        return step.detail

    def _wait_for_schema(self, wanted: NewTopic, where: str) -> str:
        with self._registry(where) as registry:

            def detail() -> str | None:
                found = read_subject(registry, wanted.subject, wanted.schema.text).registered
                return None if found is None else f"version {found[0]}, id {found[1]}"

            return _wait(detail, f"the registry of {where} has not copied {wanted.subject}; see its log")

    def _wait_for_mirror(self, wanted: NewTopic, plan: Plan, present: Present, where: str) -> str:
        by_name = {each.name: each for each in present.datacenters}
        here: PresentDatacenter = by_name[where]
        expected = copy_partitions(here, by_name, plan.partitions)
        with self._admin(where) as admin:

            def detail() -> str | None:
                topic = read_topic(admin, wanted.name)
                if topic is None or topic.partitions < expected:
                    return None
                return f"{topic.partitions} partitions of {' and '.join(here.copied_from)}"

            what = f"the mirrors have not made {wanted.name} in {where}; see `headrace mirror status`"
            return _wait(detail, what)

    def _check_copies(self, topic: str, where: str) -> None:
        mirrors: list[tuple[ContextMirror, str]] = []
        for mirror in self.context.mirrors:
            if mirror.target == where:
                with self._admin(mirror.source) as admin:
                    if topic in admin.topics():
                        mirrors.append((mirror, str(admin.topic(topic).topic_id)))
        with self._admin(where) as admin:
            check_copies(topic, mirrors, str(admin.topic(topic).topic_id))

    def _load(self, wanted: NewTopic, present: Present, step: Step) -> str:
        stored = {} if present.load is None else self._agent.load(wanted.name)
        self._agent.put_load(wanted.name, merged_load(wanted, present.load, stored))
        return step.detail

    def _start_dags(self, topic: str, step: Step) -> str:
        with airflow_of(self.site) as airflow:
            airflow.read_dags_again(LOAD_TAG)
            for dag_id in (f"load-{topic}", f"seal-{topic}"):
                airflow.unpause(dag_id)
        return step.detail

    def _write_test(self, wanted: NewTopic, step: Step) -> str:
        assert wanted.contract_test is not None
        write_contract_test(wanted, wanted.contract_test, origins_of(self.context)[0].registry)
        return step.detail

    @contextmanager
    def _admin(self, where: str) -> Iterator[Admin]:
        with Admin(self.context.datacenter(where).bootstrap, timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            yield admin

    @contextmanager
    def _registry(self, where: str) -> Iterator[SchemaRegistryClient]:
        url = self.context.datacenter(where).registry
        with SchemaRegistryClient(url, retry_rounds=REGISTRY_ROUNDS) as registry:
            yield registry


def _meant(admin: Admin, error: BrokerError, settings: Iterable[str]) -> str:
    found = unknown_setting(admin, error, settings)
    return "" if found is None else question(found.name, found.known)


def topics_file() -> Path:
    """The `topics.yaml` of this machine's DAGs."""
    return dags_folder() / "topics.yaml"


def write_contract_test(wanted: NewTopic, path: Path, registry_url: str) -> bool:
    """Writes the contract test unless the file is there; returns whether it was written.

    Raises `NewTopicError`.
    """
    text = contract_test(wanted, path, registry_url)
    if path.exists():
        return False  # it is the service's own from now on
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
            file.write(text)
    except OSError as error:
        raise NewTopicError(f"the contract test {path} cannot be written: {error.strerror}") from error
    return True


def _create_topic(admin: Admin, wanted: NewTopic, plan: Plan, *, validate_only: bool = False) -> None:
    admin.create_topic(
        wanted.name,
        plan.partitions,
        wanted.replication_factor,
        plan.settings,
        validate_only=validate_only,
    )


def _wait(detail: Callable[[], str | None], problem: str) -> str:
    deadline = time.monotonic() + COPY_WAIT_MAX_S
    while (found := detail()) is None:
        if time.monotonic() > deadline:
            raise NotCopiedError(f"after {COPY_WAIT_MAX_S:.0f} s {problem}, and run this command again")
        time.sleep(POLL_S)
    return found
