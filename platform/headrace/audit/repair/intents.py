"""Intents: batches that are to be brought again, on disk before they are sent. Owns their files.

A run that is killed at any step is completed by the next one with the same bytes and numbers.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from headrace.audit.topic.possible import shown
from headrace.audit.topic.resent import ResentRecord
from headrace.events.spooled import regular_content

INTENT_MAX_BYTES: Final = 8 * 1024 * 1024
INTENTS_MAX: Final = 100_000


class ResendError(Exception):
    """Events cannot be brought again; the message says why."""


@dataclass(frozen=True)
class Intent:
    """A batch that is to be sent, or was sent, and the record that says so. `is_said`: both were done."""

    resent: ResentRecord
    service: str
    values: tuple[str, ...]
    """SHA-256 of each record's value."""
    batch: bytes
    is_said: bool = False

    def to_json(self) -> bytes:
        batch = base64.b64encode(self.batch).decode()
        return json.dumps({**asdict(self), "resent": asdict(self.resent), "batch": batch}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Intent:
        """Raises `ValueError`, `LookupError`, `TypeError` or `RecursionError` for what is no intent."""
        raw = json.loads(data)
        resent = ResentRecord(**raw["resent"])
        made = cls(
            resent,
            raw["service"],
            tuple(raw["values"]),
            base64.b64decode(raw["batch"], validate=True),
            raw["is_said"],
        )
        for field in fields(resent):
            _check_type(field.name, getattr(resent, field.name), str if field.type == "str" else int)
        for name, value in (("service", made.service), *(("a value", each) for each in made.values)):
            _check_type(name, value, str)
        _check_type("is_said", made.is_said, bool)
        return made


def _check_type(name: str, value: object, kind: type) -> None:
    if type(value) is not kind:
        raise TypeError(f"{name} is {type(value).__name__}, not {kind.__name__}")


class Intents:
    """The intents in one folder. One process at a time changes them (`locked`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises `ResendError` while another run brings events again."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ResendError(
                    f"another repair brings events again here ({self._folder}); wait for it"
                ) from None
            yield
        finally:
            os.close(file)

    def all(self) -> list[Intent]:
        """Returns all intents, oldest first. One that cannot be read raises `ResendError`: without it, events
        might be brought twice.
        """
        found: list[tuple[int, str, Intent]] = []
        paths = sorted(self._folder.glob("*.json"))
        if len(paths) > INTENTS_MAX:
            raise ResendError(
                f"{self._folder} holds {len(paths)} intents, at most {INTENTS_MAX} are read: remove those of "
                "hours that the report shows as complete"
            )
        for path in paths:
            try:
                intent = Intent.from_json(regular_content(path, INTENT_MAX_BYTES))
                found.append((path.stat().st_mtime_ns, path.name, intent))
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                raise ResendError(
                    f"{path} cannot be read: {shown(str(error))}. It says which events were brought again: "
                    "restore it, or remove it if the report shows them as complete"
                ) from None
        return [intent for _, _, intent in sorted(found, key=lambda each: each[:2])]

    def write(self, intent: Intent) -> None:
        path = self._folder / f"{intent.resent.producer_id}-{intent.resent.datacenter}.json"
        staged = path.with_suffix(".new")
        with staged.open("wb") as stream:
            stream.write(intent.to_json())
            stream.flush()
            os.fsync(stream.fileno())
        staged.replace(path)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
