"""The local HDFS's page for people: one file, which the NameNode serves at `/`.

Maven's artifacts of Hadoop have no web pages. This one reads WebHDFS of the NameNode that serves it, by the
script `browse.js`; it loads nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from pathlib import Path

from headrace.process.page import STYLE, STYLE_HASH


def html(hdfs_url: str, data_url: str) -> str:
    """Returns the page of the HDFS at `hdfs_url`, whose DataNode answers reads of files at `data_url`."""
    script = "\n" + Path(__file__).with_name("browse.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; script-src 'sha256-{digest}'; "
        f"connect-src 'self' {data_url}; base-uri 'none'; form-action 'none'"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{escape(hdfs_url)}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{escape(hdfs_url)}</h1>
<span id="state" class="state">…</span></header>
<p class="soft">The warehouse's tables are below /data, an hour of events in each folder.</p>
<p id="problem" class="problem" hidden></p>
<dl id="figures"></dl>
<h2 id="path">/</h2>
<div id="content"><noscript>The list needs JavaScript; `headrace warehouse ls` needs none.</noscript></div>
<footer class="soft">
<p><span id="time"></span><a id="refresh" href="/">refresh</a></p>
<p>docs/pages.md: what these pages show, and how to reach them from another machine</p>
</footer>
<script>{script}</script>
</body>
</html>
"""
