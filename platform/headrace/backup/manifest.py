"""The manifest of a backup: every file with its size and SHA-256, and what the backup holds.

Owns its format, and that nothing in it is believed before it was checked: its paths reach no file outside of
the backup or of the home that is restored. It is written last: a backup without one is a half.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.backup.errors import DamagedBackupError, HalfBackupError
from headrace.log.files import replace_file

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
DIGEST: Final = "manifest.sha256"
SIZE_MAX_BYTES: Final = 1 << 30
FILES_MAX: Final = 5_000_000
PATH_MAX_BYTES: Final = 1_000
NAME_MAX_BYTES: Final = 255
FILE_MAX_BYTES: Final = (1 << 63) - 1
DIGEST_MAX_BYTES: Final = 4096
TIME_MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""
CAUSE_MAX_CHARS: Final = 200
UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a JSON document raises that nobody of ours wrote."""

_UNIT: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class FileEntry(NamedTuple):
    """One file. `path`: relative to the backup. `stamp` says what its source was; while that is the same, the
    next backup takes this file instead of copying it.
    """

    path: str
    size_bytes: int
    sha256: str
    stamp: str


class Piece(NamedTuple):
    """What one unit keeps, or the home's own files. `name`: the first part of its files' paths.

    `kind`: of the unit, or `home`. `data`: where its files belong below a home. `facts`: what people want to
    know of it, such as the addresses of each partition.
    """

    name: str
    kind: str
    datacenter: str
    data: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Manifest:
    """What a backup says of itself. `problems`: what it does not hold although it should, or holds damaged;
    `notes`: what is worth knowing. Times in Unix ms.
    """

    began_ms: int
    ended_ms: int
    home: str
    host: str
    versions: Mapping[str, str]
    configurations: Mapping[str, Mapping[str, Any]]
    pieces: tuple[Piece, ...]
    files: tuple[FileEntry, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    by_path: Mapping[str, FileEntry] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_path", {entry.path: entry for entry in self.files})

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files)

    def piece(self, name: str) -> Piece | None:
        return next((piece for piece in self.pieces if piece.name == name), None)

    def files_of(self, piece: str) -> list[FileEntry]:
        return [entry for entry in self.files if entry.path.partition("/")[0] == piece]


def save(folder: Path, manifest: Manifest) -> None:
    """Writes it, durably: first its digest, then, atomically, itself. Raises `OSError`."""
    values = {
        "format": FORMAT,
        "what": "a backup of a headrace home",
        "began_ms": manifest.began_ms,
        "ended_ms": manifest.ended_ms,
        "home": manifest.home,
        "host": manifest.host,
        "versions": dict(manifest.versions),
        "configurations": {name: dict(value) for name, value in manifest.configurations.items()},
        "pieces": [piece._asdict() for piece in manifest.pieces],
        "problems": list(manifest.problems),
        "notes": list(manifest.notes),
        "files": [list(entry) for entry in manifest.files],
    }
    content = json.dumps(values, indent=1).encode()
    replace_file(folder / DIGEST, f"{hashlib.sha256(content).hexdigest()}  {MANIFEST}\n".encode())
    replace_file(folder / MANIFEST, content)


def load(folder: Path) -> Manifest:
    """Reads a backup's manifest. Raises `HalfBackupError`, `DamagedBackupError`, `OSError`."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise HalfBackupError(f"{folder} is no backup: there is no such folder")
    if not path.is_file() or path.is_symlink():
        if held := sorted(each.parent for each in folder.glob(f"*/{MANIFEST}")):
            raise HalfBackupError(f"{folder} is a folder of backups: name one of them, such as {held[-1]}")
        raise HalfBackupError(
            f"{folder} has no {MANIFEST}: it is half a backup, or none. `headrace backup create` into its "
            "parent folder completes an interrupted one; `headrace backup list` shows the whole ones"
        )
    content = read_small(path, SIZE_MAX_BYTES)
    try:
        told = read_small(folder / DIGEST, DIGEST_MAX_BYTES).decode().partition(" ")[0]
    except (FileNotFoundError, ValueError):
        raise DamagedBackupError(f"{folder / DIGEST} is missing or unreadable; take another backup") from None
    if told != hashlib.sha256(content).hexdigest():
        raise DamagedBackupError(
            f"{path} is not the file that was written: its SHA-256 differs from {DIGEST}"
        )
    try:
        return _parsed(json.loads(content))
    except DamagedBackupError as error:
        raise DamagedBackupError(f"{path}: {error}") from None
    except UNREADABLE as error:
        raise DamagedBackupError(f"{path} is not a manifest: {cause_of(error)}") from None


def read_small(path: Path, size_max_bytes: int) -> bytes:
    """Returns the content of a regular file. Raises `DamagedBackupError` for another kind of file, which may
    have no end, and for a larger one; `OSError`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise DamagedBackupError(f"{path} is no regular file") from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise DamagedBackupError(f"{path} is no regular file")
    with os.fdopen(fd, "rb") as file:
        if found.st_size > size_max_bytes:
            raise DamagedBackupError(f"{path} is larger than {size_max_bytes} bytes: no backup writes that")
        return file.read(size_max_bytes)


def cause_of(error: Exception) -> str:
    """Returns what a parser says, short and on one line: some repeat all that they have read."""
    text = f"{type(error).__name__}: {error.reason if isinstance(error, UnicodeDecodeError) else error}"
    return ascii(text[:CAUSE_MAX_CHARS])[1:-1]


def _parsed(values: dict[str, Any]) -> Manifest:
    if values["format"] != FORMAT:
        raise DamagedBackupError(
            f"format {values['format']!r}, and this headrace knows {FORMAT}: use a newer one"
        )
    pieces = tuple(
        Piece(
            _unit(each["name"]),
            _text(each["kind"], "kind"),
            _text(each["datacenter"], "datacenter"),
            checked_path(each["data"]),
            _facts(each["facts"]),
        )
        for each in values["pieces"]
    )
    names = [piece.name for piece in pieces]
    if len(set(names)) < len(names):
        raise DamagedBackupError("two pieces have the same name")
    _check_apart(piece.data for piece in pieces if piece.kind != HOME)
    if len(values["files"]) > FILES_MAX:
        raise DamagedBackupError(f"{len(values['files'])} files are more than {FILES_MAX}")
    files = tuple(_file(each) for each in values["files"])
    _check_apart(entry.path for entry in files)
    for entry in files:
        if entry.path.partition("/")[0] not in names:
            raise DamagedBackupError(f"{entry.path!r} belongs to none of its pieces")
    return Manifest(
        _time_ms(values["began_ms"]),
        _time_ms(values["ended_ms"]),
        _text(values["home"], "home"),
        _text(values["host"], "host"),
        dict(values["versions"]),
        {name: dict(value) for name, value in values["configurations"].items()},
        pieces,
        files,
        tuple(map(str, values["problems"])),
        tuple(map(str, values["notes"])),
    )


HOME: Final = "home"
"""The kind and the name of the piece that holds the home's own files."""


def _unit(name: object) -> str:
    if not isinstance(name, str) or not _UNIT.fullmatch(name):
        raise DamagedBackupError(f"{name!r} is not the name of a piece")
    return name


def _text(text: object, what: str) -> str:
    if not isinstance(text, str) or not text.isprintable() or len(text) > PATH_MAX_BYTES:
        raise DamagedBackupError(f"{str(text)[:200]!r} is no {what}")
    return text


def _time_ms(time_ms: object) -> int:
    if type(time_ms) is not int or not 0 <= time_ms <= TIME_MAX_MS:
        raise DamagedBackupError(f"{str(time_ms)[:200]!r} is no time in milliseconds since 1970")
    return time_ms


def _facts(facts: object) -> dict[str, Any]:
    """Checks what is used of them: the topic of each partition, whose folder has the partition's name."""
    if not isinstance(facts, dict):
        raise DamagedBackupError(f"{str(facts)[:200]!r} are no facts of a piece")
    partitions = facts.get("partitions", {})
    if not isinstance(partitions, dict):
        raise DamagedBackupError(f"{str(partitions)[:200]!r} are no partitions")
    for name, told in partitions.items():
        if "/" in checked_path(name):
            raise DamagedBackupError(f"{name!r} is no partition")
        if not isinstance(told, dict) or not isinstance(told.get("topic_id"), str):
            raise DamagedBackupError(f"partition {name!r} has no topic")
    return facts


def _file(values: list[Any]) -> FileEntry:
    path, size_bytes, sha256, stamp = values
    checked = checked_path(path)
    if type(size_bytes) is not int or not 0 <= size_bytes <= FILE_MAX_BYTES:
        raise DamagedBackupError(f"{path!r}: {str(size_bytes)[:200]!r} is not a size")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise DamagedBackupError(f"{path!r}: {str(sha256)[:200]!r} is not a SHA-256")
    if "/" not in checked:
        raise DamagedBackupError(f"{path!r} belongs to none of its pieces")
    return FileEntry(checked, size_bytes, sha256, str(stamp))


def checked_path(path: object) -> str:
    """Returns a relative path that stays where it begins. Raises `DamagedBackupError`."""
    problem = "" if isinstance(path, str) else "not a text"
    if isinstance(path, str):
        parts = path.split("/")
        if not path or path.startswith("/"):
            problem = "not a relative path"
        elif any(part in ("", ".", "..") for part in parts):
            problem = "a path that leaves its folder"
        elif _CONTROL.search(path) or "\\" in path:
            problem = "a path with a control character or a backslash"
        elif len(path.encode(errors="replace")) > PATH_MAX_BYTES or any(
            len(part.encode(errors="replace")) > NAME_MAX_BYTES for part in parts
        ):
            problem = "too long"
        elif not _is_file_name(path):
            problem = "no name that a file can have"
    if problem or not isinstance(path, str):
        raise DamagedBackupError(f"{str(path)[:200]!r} is {problem}")
    return path


def _is_file_name(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def _check_apart(paths: Iterable[str]) -> None:
    """Raises `DamagedBackupError` if two paths are the same, or one is a folder of another."""
    known: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        if path in known:
            raise DamagedBackupError(f"{path!r} is there twice")
        known.add(path)
        parent = path.rpartition("/")[0]
        while parent and parent not in folders:
            folders.add(parent)
            parent = parent.rpartition("/")[0]
    if both := known & folders:
        raise DamagedBackupError(f"{min(both)!r} is a file and a folder")
