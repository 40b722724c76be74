"""The local HDFS: its configuration files, and the command that runs it.

Owns the layout of an HDFS data directory (`conf/`, `web/`, `name/`, `data/`), and the settings that make one
JVM on a loopback address a safe place for data. Starts nothing itself: `__main__` executes the command.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from xml.sax.saxutils import escape

from headrace.warehouse.hdfs.page import html
from headrace.warehouse.jars import ensure_jars, java

Role = Literal["both", "namenode", "datanode"]

HEAP_MAX_BYTES: Final = 384 << 20
_WEB_APPS: Final = ("hdfs", "datanode")
_EMPTY_WEB_XML: Final = (
    '<?xml version="1.0"?>\n<web-app xmlns="http://java.sun.com/xml/ns/javaee" version="3.0"/>\n'
)
_LOG4J: Final = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
log4j.logger.org.apache.hadoop.hdfs.StateChange=INFO
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
"""


@dataclass(frozen=True)
class HdfsConfig:
    """An HDFS on one address. The default ports are Hadoop's."""

    host: str
    data_dir: Path
    rpc_port: int = 8020
    http_port: int = 9870
    data_port: int = 9866
    data_ipc_port: int = 9867
    data_http_port: int = 9864
    extra: dict[str, str] = field(default_factory=dict)
    """Further Hadoop settings, by name."""

    @property
    def hdfs_url(self) -> str:
        """The address for Spark: `hdfs://host:port`."""
        return f"hdfs://{self.host}:{self.rpc_port}"

    @property
    def webhdfs_url(self) -> str:
        """The address for WebHDFS: `http://host:port`."""
        return f"http://{self.host}:{self.http_port}"


def settings(config: HdfsConfig) -> dict[str, str]:
    """Returns every Hadoop setting of this HDFS, by name."""
    host, home = config.host, config.data_dir
    return {
        "fs.defaultFS": config.hdfs_url,
        "dfs.namenode.name.dir": (home / "name").as_uri(),
        "dfs.datanode.data.dir": (home / "data").as_uri(),
        "hadoop.tmp.dir": str(home / "tmp"),
        "dfs.namenode.rpc-address": f"{host}:{config.rpc_port}",
        "dfs.namenode.rpc-bind-host": host,
        "dfs.namenode.http-address": f"{host}:{config.http_port}",
        "dfs.namenode.http-bind-host": host,
        "dfs.datanode.address": f"{host}:{config.data_port}",
        "dfs.datanode.ipc.address": f"{host}:{config.data_ipc_port}",
        "dfs.datanode.http.address": f"{host}:{config.data_http_port}",
        # A connection to 127.x.y.z comes from 127.0.0.1, where the NameNode would look for the DataNode.
        "dfs.datanode.hostname": host,
        "dfs.client.use.datanode.hostname": "true",
        "dfs.datanode.use.datanode.hostname": "true",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.replication": "1",
        "dfs.namenode.replication.min": "1",
        # Closing a file writes it to the disk, not only to the page cache.
        "dfs.datanode.synconclose": "true",
        "dfs.datanode.sync.behind.writes": "true",
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.safemode.min.datanodes": "1",
        "dfs.permissions.enabled": "true",
        "dfs.webhdfs.user.provider.user.pattern": "^[A-Za-z_][A-Za-z0-9._-]*[$]?$",
        # There is one DataNode: a failed write must fail instead of waiting for another one.
        "dfs.client.block.write.replace-datanode-on-failure.enable": "false",
        # For WebHDFS the DataNode is a client that writes: see `session`.
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "5",
        "dfs.client.block.write.locateFollowingBlock.retries": "12",
        "dfs.heartbeat.interval": "1s",
        "dfs.namenode.heartbeat.recheck-interval": "2000",
        "dfs.namenode.stale.datanode.interval": "10000",
        "dfs.namenode.handler.count": "6",
        "dfs.datanode.handler.count": "4",
        "dfs.namenode.resource.du.reserved": str(16 << 20),
        "dfs.client.socket-timeout": "60000",
        "dfs.blocksize": str(128 << 20),
        **config.extra,
    }


def write_conf(config: HdfsConfig) -> Path:
    """Writes `conf/`, which a client may use as `HADOOP_CONF_DIR`, and what the web server needs; returns
    `conf/`.
    """
    conf = config.data_dir / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    named = settings(config)
    core = {name: value for name, value in named.items() if name.split(".")[0] in ("fs", "hadoop")}
    hdfs = {name: value for name, value in named.items() if name not in core}
    (conf / "core-site.xml").write_text(_xml(core))
    (conf / "hdfs-site.xml").write_text(_xml(hdfs))
    (conf / "log4j.properties").write_text(_LOG4J)
    for app in _WEB_APPS:
        # Jetty needs a web.xml.
        stub = config.data_dir / "web" / "webapps" / app / "WEB-INF"
        stub.mkdir(parents=True, exist_ok=True)
        (stub / "web.xml").write_text(_EMPTY_WEB_XML)
    data_url = f"http://{config.host}:{config.data_http_port}"
    (config.data_dir / "web" / "webapps" / "hdfs" / "index.html").write_text(html(config.hdfs_url, data_url))
    return conf


def command(config: HdfsConfig, role: Role = "both", *, home: Path | None = None) -> list[str]:
    """Fetches the jars, writes the configuration, and returns the java command that runs this HDFS."""
    jars = ensure_jars(("hdfs",), home=home)["hdfs"]
    conf = write_conf(config)
    class_path = os.pathsep.join(
        [str(conf), str(config.data_dir / "web"), str(jars / "classes"), f"{jars}/*"]
    )
    return [
        java(),
        f"-Xmx{HEAP_MAX_BYTES >> 20}m",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.net.preferIPv4Stack=true",
        "-cp",
        class_path,
        "LocalHdfs",
        role,
    ]


def _xml(values: dict[str, str]) -> str:
    lines = [
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in sorted(values.items())
    ]
    return '<?xml version="1.0"?>\n<configuration>\n' + "".join(lines) + "</configuration>\n"
