"""Copies the subjects of other datacenters' registries into this one, as mirrors copy their events.

Only adds: what is deleted at a source stays here, because old events still need it. A version that is here
already, deleted or not, is left alone. Several registries of a datacenter may copy at once.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from headrace.coordination.errors import CoordinationError
from headrace.registry import errors
from headrace.registry.errors import RegistryError
from headrace.registry.requests import check_new_name, too_large
from headrace.registry.schemas import InvalidSchemaError, ParsedSchema
from headrace.registry.sources import Registration, SourceError, Sources
from headrace.registry.store import IdTakenError, SchemaStore, SubjectTooLargeError
from headrace.registry.subjects import StoredSchema, Subject, SubjectVersion
from headrace.registry.urls import NamedUrl
from headrace.registry.workers import Workers

logger = logging.getLogger(__name__)

COPY_PAUSE_S: Final = 10.0
PROBLEMS_KEPT_MAX: Final = 1_000


class SubjectCopier:
    """Copies in a thread of its own, from `start` until `stop`."""

    def __init__(
        self, store: SchemaStore, workers: Workers, sources: Sources, pause_s: float = COPY_PAUSE_S
    ) -> None:
        self._store = store
        self._workers = workers
        self._sources = sources
        self._pause_s = pause_s
        self._problems: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="registry-copying", daemon=True)

    def start(self) -> None:
        if self._sources.urls:
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread soon; it is not waited for."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for source in self._sources.urls:
                try:
                    self.copy(source)
                except Exception as error:
                    # The thread goes on: the other sources, and later answers of this one, may be right.
                    problem = f"{type(error).__name__}: {error}"
                    self._note(str(source), f"subjects of {source} are not copied: {problem}")
            self._stopping.wait(self._pause_s)

    def copy(self, source: NamedUrl) -> int:
        """Copies what is new at one source; returns how many versions that were. Logs problems, once each."""
        copied = 0
        try:
            for listed in self._sources.registrations(source):
                for each in self._unknown(listed):
                    copied += self._copy_one(source, each)
                if self._stopping.is_set():
                    return copied
            self._problems.pop(str(source), None)
        except (SourceError, CoordinationError, RegistryError) as error:
            self._note(str(source), f"subjects of {source} are not copied: {error}")
        if copied:
            logger.info("copied %d versions of subjects from %s", copied, source)
        return copied

    def _copy_one(self, source: NamedUrl, each: Registration) -> bool:
        name = f"{source} {each.subject} {each.schema_id}"
        try:
            self._add(each)
        except RegistryError as error:
            if error.retriable:
                raise
            self._note(name, f"schema {each.schema_id} of subject {each.subject!r} of {source}: {error}")
            return False
        return True

    def _unknown(self, listed: list[Registration]) -> list[Registration]:
        """Returns those that no version of their subject here has, deleted or not."""
        here = {subject.name: subject.schema_ids for subject in self._store.subjects()}
        return [each for each in listed if each.schema_id not in here.get(each.subject, frozenset())]

    def _add(self, each: Registration) -> None:
        """Adds a version to the subject of its name, whatever the subject's compatibility level is.

        Raises `RegistryError` if its id does not follow from the schema, or is another schema's here: then
        lookups of that id name both.
        """
        check_new_name(each.subject)
        schema = self._parsed(each.text)
        if schema.schema_id != each.schema_id:
            self._sources.note_contradiction(each.schema_id)
            message = f"this schema's id is {schema.schema_id}: another product's registry assigned the other"
            raise RegistryError(errors.INVALID_SCHEMA, message)

        def decide(subject: Subject) -> SubjectVersion | None:
            present = [v for v in subject.versions if v.schema_id == schema.schema_id]
            return present[-1] if present else None

        try:
            self._store.add(
                each.subject,
                schema.schema_id,
                StoredSchema(each.text, schema.guid),
                is_same=lambda stored: stored == schema.text or self._parsed(stored).is_same_as(schema),
                decide=decide,
            )
        except IdTakenError:
            self._sources.note_contradiction(each.schema_id)
            raise RegistryError(errors.ID_CONFLICT, "the id belongs to another schema here") from None
        except SubjectTooLargeError:
            raise too_large(each.subject) from None

    def _parsed(self, text: str) -> ParsedSchema:
        try:
            return self._workers.parse(text)
        except InvalidSchemaError as error:
            raise RegistryError(errors.INVALID_SCHEMA, str(error)) from None

    def _note(self, key: str, problem: str) -> None:
        if self._problems.get(key) == problem:
            return
        while len(self._problems) >= PROBLEMS_KEPT_MAX:
            del self._problems[next(iter(self._problems))]
        self._problems[key] = problem
        logger.warning("%s", problem)
