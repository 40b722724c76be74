"""Commands that the demo shows: as somebody types them in the checkout, for the demo's site."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from headrace.site.environment_variables import HOME_VARIABLE

DEFAULT_HOME: Final = ".headrace"


def other_home(home: Path) -> str:
    """Returns the setting with which commands find a site that is not in the checkout's own home; or ""."""
    is_default = home.absolute() == Path(DEFAULT_HOME).absolute()
    return "" if is_default else f"{HOME_VARIABLE}={shlex.quote(str(home.absolute()))}"


def as_typed(command: str, home: Path) -> str:
    """Returns a command such as `headrace status` for the site in `home`."""
    return f"{other_home(home)} .venv/bin/{command}".lstrip()
