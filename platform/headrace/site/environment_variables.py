"""The environment variables that tell a process which site and unit it belongs to."""

from __future__ import annotations

from typing import Final

HOME_VARIABLE: Final = "HEADRACE_HOME"
# Every supervised process has its home and these: its unit's name, and a digest of its unit's definition.
UNIT_VARIABLE: Final = "HEADRACE_UNIT"
DEFINITION_VARIABLE: Final = "HEADRACE_DEFINITION"
