"""The agent's certificate and key, as its listener uses them: read at the start, and again when they change.

Certificates end after months, and the agent runs for longer. Each new connection has the pair that is in the
files then; while the two are no pair, which they are between the writing of one and of the other, it has the
pair of before.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from headrace.agent.errors import AgentStateError
from headrace.agent.folders import Stamp, stamp_of

logger = logging.getLogger(__name__)


class CertificateFiles:
    """Raises `AgentStateError` if the files cannot be used when the agent starts."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._stamps = self._look()
        self._context = self._read()

    def context(self) -> ssl.SSLContext:
        """Returns the context for a new connection. Called by one thread."""
        stamps = self._look()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._context = self._read()
            except AgentStateError as error:
                logger.error("%s; until then the pair of before is served", error)
            else:
                logger.info("serving the certificate that was written to %s", self._certificate)
        return self._context

    def _look(self) -> list[Stamp | None]:
        return [stamp_of(path) for path in (self._certificate, self._key)]

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # A key with a passphrase would make OpenSSL ask at the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: "")
        except (OSError, ValueError) as error:
            problem = error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", error)
            raise AgentStateError(
                f"certificate {self._certificate} and key {self._key} cannot be used: {problem}; "
                "give a PEM certificate (with its chain) and its key without a passphrase"
            ) from error
        return context
