"""The local HDFS and the WebHDFS client.

`local` writes the configuration of a NameNode and DataNode in one JVM, `__main__` runs it,
`LocalHdfs.java` is its few lines of Java. `client` asks any HDFS by WebHDFS, with errors that name the
trouble.
"""
