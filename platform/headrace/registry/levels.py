"""Compatibility levels and modes: of the whole registry (`None`), and of single subjects."""

from typing import Any, Final

from headrace.registry import errors
from headrace.registry.compatibility import DEFAULT_LEVEL, Level
from headrace.registry.errors import RegistryError
from headrace.registry.requests import READONLY, check_writable
from headrace.registry.store import SchemaStore
from headrace.registry.strict_json import shown

READWRITE: Final = "READWRITE"
MODES: Final = (READWRITE, READONLY)


class Levels:
    """Reads and writes the settings over the store. Raises `RegistryError` with Confluent's codes."""

    def __init__(self, store: SchemaStore) -> None:
        self._store = store

    def enforced(self, name: str) -> tuple[Level, bool]:
        """Returns the level that applies to a subject, and whether its schemas are normalized."""
        own, default = self._store.settings(name), self._store.settings(None)
        level = own.compatibility or default.compatibility or DEFAULT_LEVEL.value
        return Level(level), bool(own.normalize if own.normalize is not None else default.normalize)

    def mode_of(self, name: str | None) -> str:
        own = None if name is None else self._store.settings(name).mode
        return own or self._store.settings(None).mode or READWRITE

    def level(self, name: str | None, *, default_to_global: bool = True) -> dict[str, Any]:
        own = self._store.settings(name)
        default = own if name is None else self._store.settings(None)
        if own.compatibility is None and own.normalize is None and name is not None and not default_to_global:
            message = f"Subject '{name}' does not have subject-level compatibility configured"
            raise RegistryError(errors.SUBJECT_LEVEL_NOT_CONFIGURED, message)
        # What is enforced, also where the subject sets the other one alone.
        level = {"compatibilityLevel": own.compatibility or default.compatibility or DEFAULT_LEVEL.value}
        normalize = default.normalize if own.normalize is None else own.normalize
        return level if normalize is None else {**level, "normalize": normalize}

    def set_level(self, name: str | None, body: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        level = body.get("compatibility")
        if level is not None:
            if not isinstance(level, str) or level.upper() not in Level.__members__:
                raise RegistryError(
                    errors.INVALID_LEVEL,
                    f"Invalid compatibility level {shown(level)}. "
                    f"Valid values are {', '.join(Level.__members__)}",
                )
            changed["compatibility"] = level.upper()
        if isinstance(body.get("normalize"), bool):
            changed["normalize"] = body["normalize"]
        unknown = [key for key, value in body.items() if value is not None and key not in changed]
        if unknown or not changed:
            names = ", ".join(key if key.isidentifier() else shown(key) for key in sorted(unknown)[:10])
            problem = f"cannot set {names}" if unknown else "nothing to set"
            raise RegistryError(
                errors.INVALID_LEVEL, f"Invalid config: {problem}; supported are compatibility and normalize"
            )
        check_writable(name or "", self.mode_of(name))
        self._store.set(name, **changed)
        return changed

    def delete_level(self, name: str | None) -> dict[str, Any]:
        """Resets the level to the default; for a subject, to the global level. Returns the level before."""
        before = self.level(name, default_to_global=False)
        check_writable(name or "", self.mode_of(name))
        self._store.set(name, compatibility=None, normalize=None)
        return before

    def mode(self, name: str | None, *, default_to_global: bool = True) -> dict[str, str]:
        mode = self._store.settings(name).mode
        if mode is None and name is not None and not default_to_global:
            message = f"Subject '{name}' does not have subject-level mode configured"
            raise RegistryError(errors.SUBJECT_MODE_NOT_CONFIGURED, message)
        return {"mode": self.mode_of(name)}

    def set_mode(self, name: str | None, body: dict[str, Any]) -> dict[str, str]:
        mode = body.get("mode")
        if not isinstance(mode, str) or mode.upper() not in MODES:
            raise RegistryError(
                errors.INVALID_MODE, f"Invalid mode {shown(mode)}. Valid values are {', '.join(MODES)}"
            )
        self._store.set(name, mode=mode.upper())
        return {"mode": mode.upper()}

    def delete_mode(self, name: str | None) -> dict[str, str]:
        before = self.mode(name, default_to_global=False)
        self._store.set(name, mode=None)
        return before
