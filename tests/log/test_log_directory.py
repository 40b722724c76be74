"""A broker's data directory: one process, one owner, and one topic id per folder."""

import errno
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from headrace.log.config import LogConfig
from headrace.log.directory import IDENTITY_FILE, OWNER_FILE, LogDirectory, PartitionName
from headrace.log.errors import DirectoryLockedError, LogDamagedError
from headrace.wire.records import Record, encode_batch
from headrace.wire.topic_names import TOPIC_NAME_LENGTH_MAX

NAME = PartitionName("page-view", 3)
FIRST, SECOND = uuid4(), uuid4()


def test_only_one_process_at_a_time(tmp_path: Path) -> None:
    with LogDirectory(tmp_path), pytest.raises(DirectoryLockedError, match="in use by another process"):
        LogDirectory(tmp_path)
    LogDirectory(tmp_path).close()


def test_a_directory_belongs_to_one_broker(tmp_path: Path) -> None:
    with LogDirectory(tmp_path) as directory:
        directory.claim(7)
        directory.claim(7)
        with pytest.raises(LogDamagedError, match="belongs to broker 7, not 8"):
            directory.claim(8)


def test_a_directory_grows_older_and_keeps_its_age(tmp_path: Path) -> None:
    with LogDirectory(tmp_path) as directory:
        directory.claim(7)
        directory.grow_older()
        directory.grow_older()
        first_id = directory.directory_id
    with LogDirectory(tmp_path) as directory:
        directory.claim(7)
        assert (directory.directory_id, directory.age) == (first_id, 2)
        directory.renew()
    with LogDirectory(tmp_path) as directory:
        directory.claim(7)
        assert directory.directory_id != first_id and directory.age == 0


def test_an_age_that_cannot_be_written_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with LogDirectory(tmp_path) as directory:
        directory.claim(7)
        monkeypatch.setattr("headrace.log.directory.replace_file", full)
        with pytest.raises(OSError, match="No space left"):
            directory.grow_older()
        assert directory.age == 0


@pytest.mark.parametrize("age", ['"old"', "Infinity", "-1", "1.5", "null", "true", '"1"'])
def test_an_age_that_is_no_number_is_damage(tmp_path: Path, age: str) -> None:
    with LogDirectory(tmp_path) as directory:
        directory.claim(7)
        owner = tmp_path / OWNER_FILE
        owner.write_text(owner.read_text().replace('"age": 0', f'"age": {age}'))
        with pytest.raises(LogDamagedError, match="does not say whose directory this is"):
            directory.claim(7)


def append(directory: LogDirectory, topic_id: UUID) -> int:
    log = directory.open(NAME, topic_id, LogConfig())
    log.append(encode_batch([Record(0, 1, None, b"x")]))
    log.close()
    return log.end_address


def test_partitions_are_found_again(tmp_path: Path) -> None:
    with LogDirectory(tmp_path) as directory:
        end = append(directory, FIRST)
        assert list(directory.partitions()) == [NAME]
        log = directory.open(NAME, FIRST, LogConfig())
        assert log.end_address == end
        log.close()


def test_an_earlier_topics_folder_is_moved_aside(tmp_path: Path) -> None:
    with LogDirectory(tmp_path) as directory:
        end = append(directory, FIRST)
        assert append(directory, SECOND) == end, "the new topic begins empty"
        (stray,) = tmp_path.glob("*.stray")
        assert (stray / f"{0:020d}.log").stat().st_size == end
        assert list(directory.partitions()) == [NAME]


def test_only_the_named_topic_is_deleted(tmp_path: Path) -> None:
    with LogDirectory(tmp_path) as directory:
        append(directory, FIRST)
        assert directory.delete(NAME, SECOND) is None
        left = directory.delete(NAME, FIRST)
        assert left is not None and left.exists() and list(directory.partitions()) == []
    with LogDirectory(tmp_path) as directory:
        assert not left.exists(), "the next start finishes a deletion that a crash interrupted"


def test_a_bit_that_rots_in_the_topics_id_is_damage_and_no_other_topic(tmp_path: Path) -> None:
    """The log would be moved aside, and its broker would begin, and perhaps lead with, an empty one."""
    with LogDirectory(tmp_path) as directory:
        end = append(directory, FIRST)
        identity = tmp_path / str(NAME) / IDENTITY_FILE
        whole = identity.read_bytes()
        damaged = 0
        for at in range(len(whole)):
            for bit in range(8):
                identity.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
                try:
                    log = directory.open(NAME, FIRST, LogConfig())
                except LogDamagedError as error:
                    assert str(identity) in str(error) and f'{{"topic_id": "{FIRST}"}}' in str(error)
                    damaged += 1
                else:
                    assert log.end_address == end
                    log.close()
        assert damaged >= 8 * len(str(FIRST)), "the id's own bits"
        assert not list(tmp_path.glob("*.stray"))


def test_what_the_message_says_brings_the_log_back(tmp_path: Path) -> None:
    with LogDirectory(tmp_path) as directory:
        end = append(directory, FIRST)
        identity = tmp_path / str(NAME) / IDENTITY_FILE
        for lost in (b"", b"[]", b"[" * 100_000, identity.read_bytes().replace(b"-", b"_"), None):
            identity.unlink() if lost is None else identity.write_bytes(lost)
            with pytest.raises(LogDamagedError, match="nobody knows whose log this is") as told:
                directory.open(NAME, FIRST, LogConfig())
            said = str(told.value)
            identity.write_text(said[said.index('{"topic_id') : said.index("}") + 1])
            log = directory.open(NAME, FIRST, LogConfig())
            assert log.end_address == end
            log.close()


def test_an_earlier_versions_folder_is_opened_and_gets_a_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogDirectory(tmp_path) as directory:
        end = append(directory, FIRST)
        identity = tmp_path / str(NAME) / IDENTITY_FILE
        whole = identity.read_bytes()
        identity.write_text(f'{{"topic_id": "{FIRST}"}}')

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("headrace.log.directory.replace_file", full)
            directory.open(NAME, FIRST, LogConfig()).abandon()
        assert directory.open(NAME, FIRST, LogConfig()).end_address == end
        assert identity.read_bytes() == whole


def test_the_longest_topic_is_deleted_and_made_again(tmp_path: Path) -> None:
    """Kafka allows names of 249 characters; a suffix behind that was more than a file system takes."""
    longest = [PartitionName("t" * TOPIC_NAME_LENGTH_MAX, 0), PartitionName("t" * TOPIC_NAME_LENGTH_MAX, 1)]
    with LogDirectory(tmp_path) as directory:
        for name in longest:
            directory.open(name, FIRST, LogConfig()).close()
            again = directory.open(name, SECOND, LogConfig())
            assert again.end_address == 0
            again.close()
            assert directory.delete(name, SECOND) is not None
        assert list(directory.partitions()) == []
        assert len(list(tmp_path.glob("*.stray"))) == len(list(tmp_path.glob("*.deleted"))) == 2
    LogDirectory(tmp_path).close()
    assert not list(tmp_path.glob("*.deleted"))
