"""docs/messages.md has every error that a user can meet, and nothing that no code says."""

from __future__ import annotations

import re
from pathlib import Path

from code_messages import Message, expression_of, raised, strings
from reference import codes

PAGE = (Path(__file__).parents[2] / "docs" / "messages.md").read_text()
LITERAL_MIN = 8
"""A pattern with fewer letters would match nearly anything, and stands for itself alone."""

# Exceptions whose messages reach a user of commands, units, loads and services. Others are caught, or concern
# programmers who call headrace's client; those have the meaning of their class.
FOR_USERS = frozenset(
    {
        "CommandError",
        "BackupError",
        "HalfBackupError",
        "DamagedBackupError",
        "RefusedError",
        "UnitUnreachableError",
        "SiteError",
        "SiteFileError",
        "AddressTakenError",
        "AddressNotOnHostError",
        "UnitFailedError",
        "AgentStateError",
        "AgentUnreachableError",
        "SupervisorError",
        "BadRequestError",
        "BodyTooLongError",
        "TooManyUnitsError",
        "BusyError",
        "UnitsLeftError",
        "NotReadyError",
        "NotReadyForRestartError",
        "LoadUnknownError",
        "TooManyLoadsError",
        "AirflowError",
        "ClusterError",
        "RunFailedError",
        "BalancerError",
        "ConfigError",
        "LogDamagedError",
        "UnfinishedError",
        "UnknownBrokerError",
        "LogOfflineError",
        "LogStorageError",
        "DirectoryLockedError",
        "SetAsideError",
        "LoadError",
        "LogWentBackError",
        "CommitConflictError",
        "ManifestError",
        "SchemasError",
        "IncompatibleSchemaError",
        "NotSealedError",
        "NoSuchTableError",
        "NoTypeError",
        "TableNameError",
        "DeadLettersError",
        "HdfsError",
        "HdfsUnreachableError",
        "HdfsFullError",
        "HdfsNoTargetError",
        "JarsError",
        "PinsError",
        "LoadScheduleError",
        "TopicNameError",
        "TopicsFileError",
        "StoreError",
        "AuditPublishError",
        "SourceBehindError",
        "SourceAheadError",
        "NotAMirrorError",
        "DivergedError",
        "RegistryError",
        "RegistryUnavailableError",
        "NewTopicError",
        "NotCopiedError",
        "MissingSchemaError",
        "InvalidTopicError",
        "TopicExistsError",
        "TooLargeError",
        "PlanError",
        "LoadGapError",
        "DrillError",
    }
)


def patterns() -> list[str]:
    """The messages that the page lists: the code in the column of messages, and in the paragraph "Also:"."""
    cells = re.findall(r"^Also: .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    column = None
    for line in PAGE.splitlines():
        row = [cell.strip() for cell in line.strip("| ").split(" | ")] if line.startswith("| ") else []
        if not row:
            column = None if not line.startswith("|---") else column
        elif "message" in row:
            column = row.index("message")
        elif column is not None:
            cells.append(line.removeprefix("| ").split(" | ")[column])
    return [text for cell in cells for text in re.findall(r"`([^`]+)`", " ".join(cell.split()))]


def letters(pattern: str) -> int:
    return len(re.sub(r"[^A-Za-z]", "", pattern))


def test_what_the_page_lists_is_in_the_code() -> None:
    code = strings()
    missing = [pattern for pattern in patterns() if not expression_of(pattern).search(code)]
    assert not missing
    assert len(patterns()) > 150


def test_every_message_for_users_is_listed() -> None:
    listed = set(patterns())
    known = [expression_of(pattern) for pattern in listed if letters(pattern) >= LITERAL_MIN]
    missing = [
        f"| `{message.text}` | | | ({message.error} at {message.where})"
        for message in raised()
        if message.error in FOR_USERS
        and message.text not in listed
        and not any(pattern.search(message.text) for pattern in known)
    ]
    assert not missing, "add these lines to docs/messages.md, with cause and way out"


def test_the_exceptions_for_users_exist() -> None:
    assert FOR_USERS - {message.error for message in raised()} <= {
        "UnitFailedError",
        "RunFailedError",
        "PlanError",
        "LoadGapError",
    }


def test_every_code_is_listed() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    first_cells = " ".join(row.split(" | ")[0] for row in rows)
    missing = [each.code for each in codes.agent_codes() if f"`{each.code}`" not in first_cells]
    missing += [
        each.code for each in codes.registry_codes() if not re.search(rf"\b{each.code}\b", first_cells)
    ]
    missing += [
        number for number in codes.exit_codes() if not re.search(rf"^\| {number} \|", PAGE, re.MULTILINE)
    ]
    assert not missing


def test_every_message_has_cause_and_way_out() -> None:
    for section in PAGE.split("\n| message | cause | way out |")[1:]:
        for row in section.partition("\n\n")[0].splitlines()[2:]:
            assert all(cell.strip() for cell in row.strip("| ").split(" | ")) and row.count(" | ") == 2, row


def test_this_test_finds_what_it_should() -> None:
    text = "site file … cannot be read: …"
    assert expression_of("site file … cannot be read").search(text)
    assert not expression_of("site file … cannot be written").search(text)
    assert Message in type(next(raised())).__mro__
