"""What can go wrong when a site is described, started or stopped.

Owns the fleet's error tree. Every message names the thing, its value and the way out, and is fit to be
shown to a user as it stands.
"""

from __future__ import annotations


class FleetError(Exception):
    """Base of all errors of the fleet."""


class SiteFileError(FleetError):
    """The description of the site is wrong; the user can mend it."""


class AddressTakenError(FleetError):
    """Somebody else listens on an address that a unit needs."""


class UnitFailedError(FleetError):
    """A unit did not become ready; carries the last lines of its log."""

    def __init__(self, unit: str, reason: str, log_tail: str, log_path: str) -> None:
        self.unit = unit
        self.reason = reason
        self.log_tail = log_tail
        self.log_path = log_path
        tail = f"\nlast lines of {log_path}:\n{log_tail}" if log_tail else f" (its log {log_path} is empty)"
        super().__init__(f"unit {unit} is not ready: {reason}{tail}")


class SupervisorError(FleetError):
    """supervisord could not be started or does not answer."""
