"""The paths of Confluent's REST interface, each a few lines over `registry.service` and `registry.levels`.

Routes that may wait for ZooKeeper or a worker are plain functions: the web framework runs them in its
threads.
"""

from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from headrace.coordination.session import SessionState, ZooKeeperSession
from headrace.process.page import HEADERS, KIND, VARIES, wants_page
from headrace.process.rendered import RenderedPage
from headrace.registry.errors import MEDIA_TYPE
from headrace.registry.levels import Levels
from headrace.registry.parameters import (
    Body,
    DeletedOnly,
    Flag,
    Paging,
    RegistryResponse,
    Subject,
    SubjectPrefix,
)
from headrace.registry.requests import AVRO
from headrace.registry.service import SchemaRegistry
from headrace.registry.subjects import StoredSchema


def _text(schema: str) -> Response:
    return Response(schema, media_type=MEDIA_TYPE)


def _described(schema: StoredSchema) -> dict[str, Any]:
    return {
        "schemaType": AVRO,
        "schema": schema.text,
        **({"guid": schema.guid} if schema.guid else {}),
    }


def add_root(app: FastAPI, session: ZooKeeperSession, rendered: RenderedPage) -> None:
    """`/` is the health as JSON for programs, and a page for browsers."""

    @app.get("/")
    async def get_root(request: Request) -> Response:
        if wants_page(request.headers.get("accept", "")):
            html = await run_in_threadpool(rendered.html, request.url.query)
            return Response(html, media_type=KIND, headers={**HEADERS, **VARIES})
        connected = session.state is SessionState.CONNECTED
        health = {"service": "headrace-registry", "zookeeper": session.state.value}
        return RegistryResponse(health, status_code=200 if connected else 503, headers=VARIES)

    @app.get("/contexts")
    async def list_contexts() -> list[str]:
        return ["."]


def add_subjects(app: FastAPI, registry: SchemaRegistry) -> None:
    @app.get("/subjects")
    def list_subjects(
        prefix: SubjectPrefix, only: DeletedOnly, page: Paging, deleted: Flag = False
    ) -> list[str]:
        return page.of(registry.subjects(prefix=prefix, deleted=deleted, deleted_only=only))

    @app.post("/subjects/{subject}")
    def look_up_schema(
        subject: Subject, body: Body, deleted: Flag = False, normalize: Flag = False
    ) -> dict[str, Any]:
        return registry.lookup(subject, body, deleted=deleted)

    @app.delete("/subjects/{subject}")
    def delete_subject(subject: Subject, permanent: Flag = False) -> list[int]:
        return registry.delete_subject(subject, permanent=permanent)

    @app.get("/subjects/{subject}/versions")
    def list_versions(subject: Subject, only: DeletedOnly, page: Paging, deleted: Flag = False) -> list[int]:
        return page.of(registry.versions(subject, deleted=deleted, deleted_only=only))

    @app.post("/subjects/{subject}/versions")
    def register_schema(subject: Subject, body: Body, normalize: Flag = False) -> dict[str, Any]:
        return registry.register(subject, body, normalize=normalize)

    @app.get("/subjects/{subject}/versions/{version}")
    def get_version(subject: Subject, version: str, deleted: Flag = False) -> dict[str, Any]:
        return registry.version(subject, version, deleted=deleted)

    @app.get("/subjects/{subject}/versions/{version}/schema")
    def get_schema_text_of_version(subject: Subject, version: str, deleted: Flag = False) -> Response:
        return _text(registry.version(subject, version, deleted=deleted)["schema"])

    @app.get("/subjects/{subject}/versions/{version}/referencedby")
    def list_references_to_version(subject: Subject, version: str) -> list[int]:
        registry.version(subject, version)
        return []  # schemas with references are refused

    @app.delete("/subjects/{subject}/versions/{version}")
    def delete_version(subject: Subject, version: str, permanent: Flag = False) -> int:
        return registry.delete_version(subject, version, permanent=permanent)


def add_schemas(app: FastAPI, registry: SchemaRegistry) -> None:
    @app.get("/schemas")
    def list_schemas(
        prefix: SubjectPrefix,
        page: Paging,
        deleted: Flag = False,
        latest_only: Annotated[bool, Query(alias="latestOnly")] = False,
    ) -> list[dict[str, Any]]:
        return registry.all_schemas(prefix=prefix, deleted=deleted, latest_only=latest_only, part=page.slice)

    @app.get("/schemas/types")
    async def list_schema_types() -> list[str]:
        return [AVRO]

    # A schema that is in memory is answered at once: every thread may be waiting for ZooKeeper.

    # `local`: without asking other datacenters' registries.

    async def of_id(schema_id: int, local: bool) -> StoredSchema:
        known = registry.known_schema(schema_id)
        if known is not None:
            return known
        return await run_in_threadpool(registry.schema, schema_id, local=local)

    @app.get("/schemas/ids/{schema_id}")
    async def get_schema(schema_id: int, local: Flag = False) -> dict[str, Any]:
        return _described(await of_id(schema_id, local))

    @app.get("/schemas/ids/{schema_id}/schema")
    async def get_schema_text(schema_id: int, local: Flag = False) -> Response:
        return _text((await of_id(schema_id, local)).text)

    @app.get("/schemas/guids/{guid}")
    def get_schema_of_guid(guid: str) -> dict[str, Any]:
        return _described(registry.schema_of_guid(guid))

    @app.get("/schemas/guids/{guid}/ids")
    def list_ids_of_guid(guid: str) -> list[dict[str, Any]]:
        return registry.ids_of_guid(guid)

    @app.get("/schemas/ids/{schema_id}/subjects")
    def list_subjects_of_schema(
        schema_id: int, page: Paging, subject: str | None = None, deleted: Flag = False
    ) -> list[str]:
        uses = registry.uses(schema_id, subject=subject, deleted=deleted)
        return page.of(list(dict.fromkeys(use["subject"] for use in uses)))

    @app.get("/schemas/ids/{schema_id}/versions")
    def list_versions_of_schema(
        schema_id: int, page: Paging, subject: str | None = None, deleted: Flag = False
    ) -> list[dict[str, Any]]:
        return page.of(registry.uses(schema_id, subject=subject, deleted=deleted))


def add_compatibility(app: FastAPI, registry: SchemaRegistry) -> None:
    def result(problems: list[str], verbose: bool) -> dict[str, Any]:
        return {"is_compatible": not problems, **({"messages": problems} if verbose else {})}

    @app.post("/compatibility/subjects/{subject}/versions")
    def check_against_subject(
        subject: Subject, body: Body, verbose: Flag = False, normalize: Flag = False
    ) -> dict[str, Any]:
        return result(registry.check(subject, None, body), verbose)

    @app.post("/compatibility/subjects/{subject}/versions/{version}")
    def check_against_version(
        subject: Subject, version: str, body: Body, verbose: Flag = False, normalize: Flag = False
    ) -> dict[str, Any]:
        return result(registry.check(subject, version, body), verbose)


def add_config(app: FastAPI, levels: Levels) -> None:
    @app.get("/config")
    def get_global_config() -> dict[str, Any]:
        return levels.level(None)

    @app.put("/config")
    def set_global_config(body: Body) -> dict[str, Any]:
        return levels.set_level(None, body)

    @app.delete("/config")
    def delete_global_config() -> dict[str, Any]:
        return levels.delete_level(None)

    @app.get("/config/{subject}")
    def get_config(
        subject: Subject, default_to_global: Annotated[bool, Query(alias="defaultToGlobal")] = False
    ) -> dict[str, Any]:
        return levels.level(subject, default_to_global=default_to_global)

    @app.put("/config/{subject}")
    def set_config(subject: Subject, body: Body) -> dict[str, Any]:
        return levels.set_level(subject, body)

    @app.delete("/config/{subject}")
    def delete_config(subject: Subject) -> dict[str, Any]:
        return levels.delete_level(subject)


def add_modes(app: FastAPI, levels: Levels) -> None:
    @app.get("/mode")
    def get_global_mode() -> dict[str, str]:
        return levels.mode(None)

    @app.put("/mode")
    def set_global_mode(body: Body, force: Flag = False) -> dict[str, str]:
        return levels.set_mode(None, body)

    @app.delete("/mode")
    def delete_global_mode() -> dict[str, str]:
        return levels.delete_mode(None)

    @app.get("/mode/{subject}")
    def get_mode(
        subject: Subject, default_to_global: Annotated[bool, Query(alias="defaultToGlobal")] = False
    ) -> dict[str, str]:
        return levels.mode(subject, default_to_global=default_to_global)

    @app.put("/mode/{subject}")
    def set_mode(subject: Subject, body: Body, force: Flag = False) -> dict[str, str]:
        return levels.set_mode(subject, body)

    @app.delete("/mode/{subject}")
    def delete_mode(subject: Subject) -> dict[str, str]:
        return levels.delete_mode(subject)
