import java.io.File;
import java.util.concurrent.CountDownLatch;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;

/**
 * One ActiveMQ Classic broker: arguments are its folder, host and port.
 *
 * <p>Settings are those of the activemq.xml that ActiveMQ ships (KahaDB, 70 % of the heap for messages, 100 GB for
 * the store), without its web console and protocols other than OpenWire, which nothing here uses.
 */
public final class ActiveMqServer {
  private static final long GB = 1L << 30;

  public static void main(String[] arguments) throws Exception {
    BrokerService broker = new BrokerService();
    broker.setBrokerName("bench");
    broker.getManagementContext().setCreateConnector(false);
    broker.setDataDirectory(arguments[0]);
    KahaDBPersistenceAdapter store = new KahaDBPersistenceAdapter();
    store.setDirectory(new File(arguments[0], "kahadb"));
    broker.setPersistenceAdapter(store);
    broker.getSystemUsage().getMemoryUsage().setPercentOfJvmHeap(70);
    broker.getSystemUsage().getStoreUsage().setLimit(100 * GB);
    broker.getSystemUsage().getTempUsage().setLimit(50 * GB);
    broker.addConnector(
        "tcp://" + arguments[1] + ":" + arguments[2]
            + "?maximumConnections=1000&wireFormat.maxFrameSize=104857600");
    broker.setUseShutdownHook(true);
    broker.start();
    broker.waitUntilStarted();
    new CountDownLatch(1).await();
  }
}
