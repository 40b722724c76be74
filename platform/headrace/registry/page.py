"""A registry's page for people. Pure: what is known in, a page out."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from headrace.coordination.session import SessionState
from headrace.process.page import Link, Mark, Page, Table, Tone
from headrace.registry.subjects import Subject


def page(state: SessionState, subjects: Sequence[Subject] | None) -> Page:
    """Shows the subjects. None: they were not read yet."""
    is_connected = state is SessionState.CONNECTED
    problem = f"ZooKeeper, which keeps the schemas, is {state.value}: reads show what was known last."
    live = [subject for subject in subjects or () if subject.is_live]
    schema_ids = {version.schema_id for subject in live for version in subject.live}
    return Page(
        title="Schema registry",
        state=Mark("serving", Tone.GOOD) if is_connected else Mark("without ZooKeeper", Tone.BAD),
        about="It keeps the Avro schemas of a datacenter's topics, by Confluent's REST interface.",
        problems=() if is_connected else (problem,),
        figures=(
            ("subjects", None if subjects is None else len(live)),
            ("versions", None if subjects is None else sum(len(subject.live) for subject in live)),
            ("schemas", None if subjects is None else len(schema_ids)),
            ("ZooKeeper", state.value),
        ),
        tables=(
            Table(
                "Subjects",
                ("subject", "versions", "newest version", "its schema's id", "schema"),
                [_row(subject) for subject in live],
            ),
        ),
        links=(Link("/subjects (JSON)", "/subjects"), Link("/config (JSON)", "/config")),
    )


def _row(subject: Subject) -> tuple[str, int, int, str, Link]:
    newest = subject.live[-1]
    path = f"/subjects/{quote(subject.name, safe='', errors='replace')}/versions/{newest.version}/schema"
    # An id is a name: it has no thousands.
    return subject.name, len(subject.live), newest.version, str(newest.schema_id), Link("show", path)
