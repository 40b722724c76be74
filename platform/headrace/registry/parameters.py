"""What routes read from a request: its JSON body, the subject in its path, flags, the part of a list.

All are coroutines: FastAPI would run plain functions in its threads, and reads of what is in memory must
not wait for one.
"""

from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from headrace.registry import errors
from headrace.registry.errors import MEDIA_TYPE, RegistryError
from headrace.registry.requests import check_name
from headrace.registry.schemas import SCHEMA_MAX_BYTES
from headrace.registry.strict_json import JsonError, loads, shown

BODY_MAX_BYTES: Final = 2 * SCHEMA_MAX_BYTES
"""A schema is a JSON string inside JSON: escaping may double its size."""
SMALL_BODY_MAX_BYTES: Final = 20_000
"""What is parsed at once; a longer body is parsed in a thread."""

_T = TypeVar("_T")


class RegistryResponse(JSONResponse):
    media_type = MEDIA_TYPE


async def read_body(request: Request) -> dict[str, Any]:
    """Reads a request's JSON object, whatever its Content-Type is (`curl -d` sends that of a form)."""
    received = bytearray()
    try:
        async for chunk in request.stream():
            received += chunk
            if len(received) > BODY_MAX_BYTES:
                break
    except ClientDisconnect:
        raise RegistryError(400, "The client went before its request was complete") from None
    if len(received) > BODY_MAX_BYTES:
        raise RegistryError(413, f"The request's body is longer than {BODY_MAX_BYTES} bytes")
    try:
        if len(received) <= SMALL_BODY_MAX_BYTES:
            body = loads(received)
        else:
            body = await run_in_threadpool(loads, received)
    except JsonError as error:
        raise RegistryError(400, f"The request's body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RegistryError(400, "The request's body must be a JSON object")
    return body


async def read_subject(subject: Annotated[str, Path()]) -> str:
    try:
        name = unquote_to_bytes(subject).decode("utf-8")
    except UnicodeDecodeError:
        raise RegistryError(
            errors.INVALID_SUBJECT, f"The specified subject {shown(subject)} is not valid: it is not UTF-8"
        ) from None
    check_name(name)
    return name


async def read_prefix(prefix: Annotated[str, Query(alias="subjectPrefix")] = "") -> str:
    # Confluent's clients send the prefix ":*:" for "in any context"; there is only one context here.
    return prefix.removeprefix(":*:")


async def read_deleted_only(
    deleted_only: Annotated[bool, Query(alias="deletedOnly")] = False,
    deleted_only_python: Annotated[bool, Query(alias="deleted_only")] = False,
) -> bool:
    return deleted_only or deleted_only_python


class Page:
    """The part of a list to return; all of it by default."""

    def __init__(self, offset: int = 0, limit: int = -1) -> None:
        self.slice = slice(offset, None if limit < 0 else offset + limit)

    def of(self, items: list[_T]) -> list[_T]:
        return items[self.slice]


async def read_page(offset: Annotated[int, Query(ge=0)] = 0, limit: int = -1) -> Page:
    return Page(offset, limit)


Subject = Annotated[str, Depends(read_subject)]
SubjectPrefix = Annotated[str, Depends(read_prefix)]
DeletedOnly = Annotated[bool, Depends(read_deleted_only)]
Paging = Annotated[Page, Depends(read_page)]
Body = Annotated[dict[str, Any], Depends(read_body)]
Flag = Annotated[bool, Query()]
