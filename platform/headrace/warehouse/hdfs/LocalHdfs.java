import java.io.File;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.server.common.Storage;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.namenode.FSNamesystem;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

/**
 * A NameNode and a DataNode in one JVM, on the configuration of the class path.
 *
 * <p>Both are Hadoop's own, with their own directories on disk: what was written outlives the process, however it ends. A
 * new NameNode directory is formatted, an old one never. The process ends when either of the two does, so that a supervisor
 * sees it.
 */
public final class LocalHdfs {
  private static final long WATCH_INTERVAL_MS = 500;

  private LocalHdfs() {}

  public static void main(String[] args) {
    String role = args.length > 0 ? args[0] : "both";
    try {
      run(role);
    } catch (Throwable problem) {
      System.err.println("hdfs: " + role + " could not start: " + problem);
      problem.printStackTrace();
      System.exit(1);
    }
  }

  private static void run(String role) throws Exception {
    Configuration conf = new HdfsConfiguration();
    DefaultMetricsSystem.setMiniClusterMode(true);
    NameNode nameNode = null;
    DataNode dataNode = null;
    if (!role.equals("datanode")) {
      if (isNew(conf)) {
        System.err.println("hdfs: formatting a new NameNode directory");
        NameNode.format(conf);
      }
      nameNode = NameNode.createNameNode(new String[0], conf);
    }
    if (!role.equals("namenode")) {
      dataNode = DataNode.createDataNode(new String[0], conf);
    }
    System.err.println("hdfs: " + role + " started at " + conf.get("fs.defaultFS"));
    while ((nameNode == null || nameNode.isActiveState()) && (dataNode == null || dataNode.isDatanodeUp())) {
      Thread.sleep(WATCH_INTERVAL_MS);
    }
    System.err.println("hdfs: " + (dataNode != null && !dataNode.isDatanodeUp() ? "DataNode" : "NameNode") + " ended; leaving");
    System.exit(1);
  }

  private static boolean isNew(Configuration conf) {
    for (URI directory : FSNamesystem.getNamespaceDirs(conf)) {
      File version = new File(new File(directory.getPath(), Storage.STORAGE_DIR_CURRENT), "VERSION");
      if (version.exists()) {
        return false;
      }
    }
    return true;
  }
}
