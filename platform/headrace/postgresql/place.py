"""Where clients reach a unit's PostgreSQL: the folder of its socket, the URL, and the names in it.

Pure, except for the name of this machine's folder of temporary files.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import quote

# The role and the database that Airflow uses. The socket's name holds the port.
ROLE: Final = "airflow"
DATABASE: Final = "airflow"
PORT: Final = 5432
SOCKET_NAME: Final = f".s.PGSQL.{PORT}"
# sockaddr_un holds 108 bytes, the last of which is 0.
SOCKET_PATH_MAX_BYTES: Final = 107


def socket_folder(home: Path, unit: str) -> Path:
    """The folder in which clients find the unit's socket: a link to the server's own folder.

    It is in the home, unless a socket there would have too long a path.
    """
    folder = home / "sockets" / unit
    if len(os.fsencode(folder / SOCKET_NAME)) <= SOCKET_PATH_MAX_BYTES:
        return folder
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}" / name


def database_url(folder: Path) -> str:
    """SQLAlchemy's URL of the database. It holds no password: the kernel tells the server who connects."""
    return f"postgresql+psycopg2://{ROLE}@/{DATABASE}?host={quote(str(folder), safe='/')}"
