import java.io.File;
import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.DFSConfigKeys;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.server.common.Storage;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.namenode.FSNamesystem;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.hdfs.util.RwLockMode;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

/**
 * A NameNode and a DataNode in one JVM, on the configuration of the class path.
 *
 * <p>Both are Hadoop's own, with their own directories on disk: what was written outlives the process, however it ends. A
 * new NameNode directory is formatted, an old one never. The process ends when either of the two does, so that a supervisor
 * sees it.
 *
 * <p>A NameNode writes a new image when it starts, and else leaves that to a second one, which there is not. So it is told
 * to, as often as Hadoop's settings say: its journal would keep each transaction of years, and read all at its next start.
 */
public final class LocalHdfs {
  private static final long WATCH_INTERVAL_MS = 500;
  private static final long ROOM_MIN_BYTES = 64L << 20;

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
      if (nameNode != null && isImageDue(conf, nameNode.getNamesystem())) {
        try {
          writeImage(nameNode.getNamesystem());
        } catch (IOException problem) {
          System.err.println("hdfs: the NameNode's image cannot be written: " + problem + "; leaving");
          System.exit(1);
        }
      }
    }
    System.err.println("hdfs: " + (dataNode != null && !dataNode.isDatanodeUp() ? "DataNode" : "NameNode") + " ended; leaving");
    System.exit(1);
  }

  /** Whether there is enough to fold, and room for it: a NameNode gives up a folder whose disk is full. */
  private static boolean isImageDue(Configuration conf, FSNamesystem namesystem) {
    long transactions = namesystem.getTransactionsSinceLastCheckpoint();
    long most =
        conf.getLong(
            DFSConfigKeys.DFS_NAMENODE_CHECKPOINT_TXNS_KEY, DFSConfigKeys.DFS_NAMENODE_CHECKPOINT_TXNS_DEFAULT);
    if (transactions < most || namesystem.isInSafeMode()) {
      return false;
    }
    for (URI directory : FSNamesystem.getNamespaceDirs(conf)) {
      long bytes = ROOM_MIN_BYTES;
      File[] files = new File(new File(directory.getPath()), Storage.STORAGE_DIR_CURRENT).listFiles();
      for (File file : files == null ? new File[0] : files) {
        bytes += file.getName().startsWith("fsimage_") || file.getName().startsWith("edits_") ? file.length() : 0;
      }
      if (new File(directory.getPath()).getUsableSpace() < bytes) {
        return false;
      }
    }
    return true;
  }

  /** As a NameNode does at its start: under the lock of all changes, so that clients wait for it. */
  private static void writeImage(FSNamesystem namesystem) throws IOException {
    namesystem.cpLock();
    try {
      namesystem.writeLock(RwLockMode.GLOBAL);
      try {
        namesystem.getFSImage().saveNamespace(namesystem);
      } finally {
        namesystem.writeUnlock(RwLockMode.GLOBAL, "checkpoint");
      }
    } finally {
      namesystem.cpUnlock();
    }
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
