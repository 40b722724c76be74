"""The errors of backups. Each message names the folder or file, and the way out."""

from __future__ import annotations


class BackupError(Exception):
    """A backup, or a restore, that cannot be made or continued."""


class HalfBackupError(BackupError):
    """A folder that a backup has begun and not ended: it has no manifest."""


class DamagedBackupError(BackupError):
    """A backup whose files are not those that its manifest names, or whose manifest lies."""


class RefusedError(BackupError):
    """Caused by the caller: it would overwrite something, or asks for what the backup does not hold."""


class UnitUnreachableError(BackupError):
    """A unit that runs and does not answer: its files may not be copied then."""
