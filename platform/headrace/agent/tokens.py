"""The agent's token: a file that only its owner may read, created at the first start.

Owns that file and the check of a request's header. The token is never logged.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import stat
from pathlib import Path
from typing import Final

from headrace.agent.errors import AgentStateError
from headrace.agent.folders import write_durably

TOKEN_BYTES: Final = 32
TOKEN_LENGTH_MAX: Final = 512


def read_token(path: Path) -> str:
    """Reads the token. Raises `AgentStateError`, also if others than its owner may read the file."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise AgentStateError(f"others may read the token in {path} (mode {mode:04o}); chmod 600 {path}")
        token = path.read_text().strip()
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not text"
        raise AgentStateError(f"the token in {path} cannot be read: {problem}") from error
    if not TOKEN_BYTES <= len(token) <= TOKEN_LENGTH_MAX or not token.isascii() or not token.isprintable():
        raise AgentStateError(
            f"{path} holds no token: a token has {TOKEN_BYTES} to {TOKEN_LENGTH_MAX} printable characters; "
            "delete the file, and the next start creates a new one"
        )
    return token


def make_token(path: Path) -> str:
    """Reads the token, after creating the file if there is none. Raises `AgentStateError`."""
    if not path.exists():
        write_durably(path, secrets.token_urlsafe(TOKEN_BYTES) + "\n")
    return read_token(path)


def with_password(header: bytes | None) -> bytes | None:
    """The header as if the password of `Basic` authentication, which browsers know, were sent as a token."""
    scheme, _, given = (header or b"").partition(b" ")
    if scheme.lower() != b"basic":
        return header
    try:
        _, _, password = base64.b64decode(given.strip(), validate=True).partition(b":")
    except ValueError:
        return None
    return b"Bearer " + password


def is_authorized(header: bytes | None, token: str) -> bool:
    """Whether an `Authorization` header carries the token; compares in constant time."""
    scheme, _, given = (header or b"").partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), token.encode())
