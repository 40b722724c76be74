"""The environment variables by which a site's processes know where they belong."""

from __future__ import annotations

from typing import Final

HOME_VARIABLE: Final = "HEADRACE_HOME"
# Every supervised process carries both: its home and its name.
UNIT_VARIABLE: Final = "HEADRACE_UNIT"
# And this, which differs once the unit would be started otherwise.
DEFINITION_VARIABLE: Final = "HEADRACE_DEFINITION"
