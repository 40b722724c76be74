"""`headrace schemas delete | compatibility`: what changes subjects besides a new version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.registry.client import SchemaRegistryClient

from headrace.cli import names
from headrace.cli.context import DatacenterOption, RegistryOption
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, confirm, out, plain, print_json
from headrace.cli.schemas import SubjectArgument, naming, registry_of
from headrace.registry.level import Level


def delete(
    subject: SubjectArgument,
    version: Annotated[
        str | None, typer.Option("--version", help="Only this version, or latest; by default all.")
    ] = None,
    permanent: Annotated[
        bool, typer.Option("--permanent", help="Remove what was deleted before for good.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    where: DatacenterOption = None,
    registry: RegistryOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a subject, or one version: in two steps, as in Confluent's registry.

    A deleted version is not listed, and nothing is compared with it; values that were written with it stay
    readable. What was deleted can be deleted again with --permanent: then nothing reads those values any
    more, unless another subject has the same schema.
    """
    with registry_of(where, registry) as client, naming(client, subject):
        if not yes:
            _ask(subject, version, permanent)
        versions = _delete(client, subject, version, permanent)
    if json:
        print_json({"subject": subject, "versions": versions, "permanent": permanent, "deleted": True})
        return
    which = f"version{'s' * (len(versions) > 1)} {', '.join(map(str, versions))} of {plain(subject)}"
    if permanent:
        out.print(f"deleted {which} for good")
    else:
        out.print(f"deleted {which}; their values stay readable, --permanent removes the schemas, too")


def _ask(subject: str, version: str | None, permanent: bool) -> None:
    what = f"version {version} of {subject}" if version else f"all versions of {subject}"
    if permanent:
        confirm(f"delete {what} for good? Values that were written with them cannot be read any more.")
    else:
        confirm(f"delete {what}?")


def _delete(client: SchemaRegistryClient, subject: str, version: str | None, permanent: bool) -> list[int]:
    """Returns the numbers of the deleted versions. A refusal says which step is missing."""
    from headrace.registry import errors

    first = (errors.SUBJECT_NOT_SOFT_DELETED, errors.VERSION_NOT_SOFT_DELETED)
    again = (errors.SUBJECT_SOFT_DELETED, errors.VERSION_SOFT_DELETED)
    try:
        if version is None:
            return client.delete_subject(subject, permanent=permanent)
        return [client.delete_version(subject, version, permanent=permanent)]
    except errors.RegistryError as error:
        what = f"version {version} of {subject}" if version else subject
        if error.error_code in first:
            raise CommandError(
                f"{what} is not deleted yet: a permanent deletion is the second step; delete it without "
                "--permanent first"
            ) from error
        if error.error_code in again:
            raise CommandError(f"{what} is deleted already; --permanent removes it for good") from error
        raise


def compatibility(
    subject: Annotated[
        str | None,
        typer.Argument(
            help="A subject; by default the level of all that have none of their own.",
            autocompletion=names.subjects,
        ),
    ] = None,
    set_: Annotated[
        Level | None,
        typer.Option("--set", help="The new level.", case_sensitive=False, metavar="LEVEL"),
    ] = None,
    unset: Annotated[
        bool, typer.Option("--unset", help="Remove the subject's own level: the global one applies again.")
    ] = False,
    where: DatacenterOption = None,
    registry: RegistryOption = None,
    json: JsonOption = False,
) -> None:
    """Show or set which changes of a schema are allowed: the compatibility level.

    BACKWARD (the default): the new version reads what the version before it wrote. FORWARD: the version
    before it reads what the new one writes. FULL: both. With _TRANSITIVE: all earlier versions, not only the
    last. NONE: any change.
    """
    if set_ is not None and unset:
        raise CommandError("give either --set LEVEL or --unset, not both", ExitCode.USAGE)
    if unset and subject is None:
        raise CommandError("--unset needs a subject; the global level can only be --set", ExitCode.USAGE)
    with registry_of(where, registry) as client:
        before = client.config(subject), None if subject is None else client.own_config(subject)
        if set_ is not None:
            client.set_config(set_.value, subject)
        elif unset and subject is not None and before[1] is not None:
            client.delete_config(subject)
        level, own = client.config(subject), None if subject is None else client.own_config(subject)
    origin = "global" if own is None else "subject"
    is_changed = (level, own) != before
    if json:
        print_json({"subject": subject, "level": level, "set_for": origin, "changed": is_changed})
        return
    whose = "all subjects without a level of their own" if subject is None else plain(subject)
    why = " (the global level)" if subject is not None and own is None else ""
    out.print(f"{whose}: {level}{why}" + ("" if is_changed or not (set_ or unset) else ", as before"))
