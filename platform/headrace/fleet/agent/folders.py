"""How much a folder of this host holds.

Owns the walk. Files come and go meanwhile: it is a moment's view.
"""

from __future__ import annotations

import os
from pathlib import Path


def folder_size_bytes(folder: Path) -> int:
    """What the files below hold, in bytes as they would be read; 0 for a folder that is not there."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(where) / name).lstat().st_size
            except FileNotFoundError:
                continue
    return total
