"""The base of the errors of `site`, `agent` and `fleet`.

Every message names the thing, its value and what to do, and can be shown to a user unchanged.
"""

from __future__ import annotations


class SiteError(Exception):
    """Base of all errors of an installation: its description, its units, its agents."""


class SiteFileError(SiteError):
    """The site file is wrong; the user can correct it."""
