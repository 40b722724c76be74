"""What the registry's server and client share: the media type, Confluent's error codes, the exceptions."""

from typing import Final

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"

SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
SUBJECT_SOFT_DELETED: Final = 40404
SUBJECT_NOT_SOFT_DELETED: Final = 40405
VERSION_SOFT_DELETED: Final = 40406
VERSION_NOT_SOFT_DELETED: Final = 40407
SUBJECT_LEVEL_NOT_CONFIGURED: Final = 40408
SUBJECT_MODE_NOT_CONFIGURED: Final = 40409
INCOMPATIBLE: Final = 409
INVALID_SCHEMA: Final = 42201
INVALID_VERSION: Final = 42202
INVALID_LEVEL: Final = 42203
INVALID_MODE: Final = 42204
NOT_PERMITTED: Final = 42205
INVALID_SUBJECT: Final = 42208
TOO_LARGE: Final = 42209
STORE_FAILED: Final = 50001

# Our own, in gaps of Confluent's.
ID_TAKEN: Final = 40950
"""Another schema has the id that follows from this schema's content."""
ID_CONFLICT: Final = 40951
"""Of the client: two registries have different schemas for one id."""
BUSY: Final = 50350


class RegistryError(Exception):
    """The registry refused a request. `retriable`: whether the same request may succeed later.

    `error_code` is Confluent's (docs.confluent.io, "Schema Registry API Reference"), `status` that of HTTP.
    """

    def __init__(self, error_code: int, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message

    @property
    def status(self) -> int:
        return self.error_code // 100 if self.error_code > 999 else self.error_code

    @property
    def retriable(self) -> bool:
        return self.status >= 500 or self.status in {408, 429}

    def __str__(self) -> str:
        return f"{self.message} (error {self.error_code})"


class RegistryUnavailableError(Exception):
    """Caused by the environment: no registry responded. The request may have taken effect; retry later."""

    retriable = True
