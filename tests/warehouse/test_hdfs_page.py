"""The page of the local HDFS, served by its NameNode: it lists folders and shows files."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import httpx
import pytest

from fix_hdfs import HdfsProcess
from headrace.warehouse.hdfs.page import html as page_html

pytestmark = pytest.mark.hdfs

EVIL = "<img src=x onerror=alert(1)>&\"'\u202e"


def test_the_page_allows_its_own_script_alone() -> None:
    text = page_html("hdfs://<b>:8020", "http://127.9.0.31:9864")
    assert "<b>" not in text
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', text)[0])
    assert "default-src 'none'" in policy
    assert "connect-src 'self' http://127.9.0.31:9864;" in policy
    assert "unsafe" not in policy
    assert not re.search(r'(src|href)="(https?:)?//', text), "nothing is loaded from elsewhere"


def test_the_namenode_serves_it_at_its_root(hdfs: HdfsProcess) -> None:
    answer = httpx.get(f"{hdfs.webhdfs_url}/", trust_env=False, timeout=60, follow_redirects=True)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert f"<h1>{hdfs.hdfs_url}</h1>" in answer.text


def test_it_lists_folders_and_shows_files(
    hdfs: HdfsProcess, page_after_scripts: Callable[[str], str]
) -> None:
    with hdfs.client() as client:
        client.write(f"/page/{EVIL}", b"x")
        client.write("/page/text", b"<script>alert(2)</script>\x1b[2J\n" + b"y" * 70_000)
        client.write("/page/image", b"PAR1\x00\x01")
    root = page_after_scripts(f"{hdfs.webhdfs_url}/")
    assert 'class="state good">serving<' in root
    assert '<a href="#/page">page/</a>' in root
    folder = page_after_scripts(f"{hdfs.webhdfs_url}/#/page")
    assert "&lt;img src=x onerror=alert(1)&gt;&amp;" in folder
    assert "<img" not in folder
    assert "\u202e" not in folder
    assert "68.4 KiB" in folder
    file = page_after_scripts(f"{hdfs.webhdfs_url}/#/page/text")
    assert "<pre>&lt;script&gt;alert(2)&lt;/script&gt;\\u001b[2J\ny" in file
    assert "4.4 KiB more" in file
    assert "A Parquet file" in page_after_scripts(f"{hdfs.webhdfs_url}/#/page/image")
    assert "/nowhere" in page_after_scripts(f"{hdfs.webhdfs_url}/#/nowhere")
