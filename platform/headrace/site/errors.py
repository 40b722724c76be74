"""What can go wrong when an installation is described, started or stopped.

Owns the base of the errors of `site`, `agent` and `fleet`. Every message names the thing, its value and the
way out, and is fit to be shown to a user as it stands.
"""

from __future__ import annotations


class SiteError(Exception):
    """Base of all errors of an installation: its description, its units, its agents."""


class SiteFileError(SiteError):
    """The description of the site is wrong; the user can mend it."""
