"""The load job as spark-submit starts it: a script, whose folder is first on Python's path."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.warehouse import job


def test_no_module_beside_it_hides_pythons_own() -> None:
    done = subprocess.run(
        [sys.executable, job.__file__, "--help"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "load" in done.stdout


@pytest.mark.parametrize("until", ["1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.998", "0001-01-01"])
def test_a_load_until_a_time_before_1970_is_refused(until: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As a DAG's param `until`: the first one stands for a log's end, so everything was loaded."""
    nowhere = ("--bootstrap", "x:1", "--registry-url", "http://x", "--hdfs-url", "x", "--webhdfs-url", "x")
    with pytest.raises(SystemExit) as ended:
        job.main(["load", "page-view", *nowhere, "--until", until])
    assert ended.value.code == 2
    assert f"--until: '{until}' is not a time from 1970 to 9999" in capsys.readouterr().err
