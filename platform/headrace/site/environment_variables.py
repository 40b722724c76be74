"""The environment variables that tell a process which site and unit it belongs to."""

from __future__ import annotations

from typing import Final

from headrace.process import neighbours

HOME_VARIABLE: Final = "HEADRACE_HOME"
# Which installation commands and programs work on.
CONTEXT_VARIABLE: Final = "HEADRACE_CONTEXT"
# Every supervised process has its home and these: its unit's name, a digest of its unit's definition, and the
# file that names the pages of its host.
UNIT_VARIABLE: Final = neighbours.UNIT_VARIABLE
DEFINITION_VARIABLE: Final = "HEADRACE_DEFINITION"
PAGES_VARIABLE: Final = neighbours.FILE_VARIABLE
