"""The local HDFS and a client of any HDFS.

`local` configures a NameNode and a DataNode in one JVM (`LocalHdfs.java`), `__main__` runs them. `client`
speaks WebHDFS; its errors, in `errors`, name the problem.
"""
