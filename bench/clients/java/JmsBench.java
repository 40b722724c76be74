import jakarta.jms.BytesMessage;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.Session;
import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ActiveMQMessageConsumer;
import org.apache.activemq.ActiveMQMessageProducer;
import org.apache.activemq.ActiveMQPrefetchPolicy;
import org.apache.activemq.AsyncCallback;

/**
 * ActiveMQ's JMS client on a queue, with persistent delivery: `produce` or `consume` on one connection.
 *
 * <p>`--acks`: `none` sends without any response, as the paper did, and the last message waits for one, so that
 * the broker has stored all; `callback` is told of each message that is stored, at most `--outstanding` are not
 * yet; `transaction` commits every `--batch` messages.
 */
public final class JmsBench {
  public static void main(String[] arguments) throws Exception {
    Options options = new Options(arguments);
    ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(options.text("url"));
    factory.setUseAsyncSend(true);
    factory.setWatchTopicAdvisories(false);
    // The sender does not touch a message again, so the client need not copy it.
    factory.setCopyMessageOnSend(false);
    if (options.verb.equals("consume")) {
      ActiveMQPrefetchPolicy prefetch = new ActiveMQPrefetchPolicy();
      prefetch.setQueuePrefetch(options.count("prefetch"));
      factory.setPrefetchPolicy(prefetch);
      factory.setOptimizeAcknowledge(true);
    }
    ActiveMQConnection connection = (ActiveMQConnection) factory.createConnection();
    try {
      connection.start();
      switch (options.verb) {
        case "produce" -> produce(options, connection);
        case "consume" -> consume(options, connection);
        default -> throw new IllegalArgumentException("produce or consume, not " + options.verb);
      }
    } finally {
      connection.close();
    }
  }

  private static void produce(Options options, ActiveMQConnection connection) throws Exception {
    boolean isTransacted = options.text("acks").equals("transaction");
    Session session =
        connection.createSession(
            isTransacted, isTransacted ? Session.SESSION_TRANSACTED : Session.AUTO_ACKNOWLEDGE);
    ActiveMQMessageProducer producer =
        (ActiveMQMessageProducer) session.createProducer(session.createQueue(options.text("queue")));
    producer.setDeliveryMode(DeliveryMode.PERSISTENT);
    byte[] value = Measure.value(options.count("value-bytes"));
    switch (options.text("acks")) {
      case "none" -> produceUnconfirmed(options, connection, session, producer, value);
      case "callback" -> produceConfirmed(options, session, producer, value);
      case "transaction" -> produceTransacted(options, session, producer, value);
      default -> throw new IllegalArgumentException("--acks is none, callback or transaction");
    }
  }

  private static BytesMessage message(Session session, byte[] value) throws JMSException {
    BytesMessage message = session.createBytesMessage();
    message.writeBytes(value);
    return message;
  }

  private static void produceUnconfirmed(
      Options options,
      ActiveMQConnection connection,
      Session session,
      ActiveMQMessageProducer producer,
      byte[] value)
      throws Exception {
    Progress progress = new Progress(options, 1);
    while (progress.maySend(1)) {
      producer.send(message(session, value));
      progress.confirmed(1);
    }
    // The broker takes a connection's commands in order: the response to this one follows all messages.
    connection.setUseAsyncSend(false);
    connection.setAlwaysSyncSend(true);
    progress.sendLast(() -> producer.send(message(session, value)));
    progress.finishProducing();
  }

  private static void produceConfirmed(
      Options options, Session session, ActiveMQMessageProducer producer, byte[] value) throws Exception {
    Progress progress = new Progress(options, options.count("outstanding"));
    AsyncCallback stored =
        new AsyncCallback() {
          @Override
          public void onSuccess() {
            progress.confirmed(1);
          }

          @Override
          public void onException(JMSException error) {
            progress.failed(error);
          }
        };
    while (progress.maySend(1)) {
      producer.send(message(session, value), stored);
    }
    progress.finishProducing();
  }

  private static void produceTransacted(
      Options options, Session session, ActiveMQMessageProducer producer, byte[] value) throws Exception {
    int batch = options.count("batch");
    Progress progress = new Progress(options, batch);
    while (progress.maySend(batch)) {
      for (int i = 0; i < batch; i++) {
        producer.send(message(session, value));
      }
      session.commit();
      progress.confirmed(batch);
    }
    progress.finishProducing();
  }

  private static void consume(Options options, ActiveMQConnection connection) throws Exception {
    Progress progress = new Progress(options, 1);
    Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    ActiveMQMessageConsumer consumer =
        (ActiveMQMessageConsumer) session.createConsumer(session.createQueue(options.text("queue")));
    consumer.setMessageListener(
        (Message message) -> {
          try {
            byte[] value = new byte[(int) ((BytesMessage) message).getBodyLength()];
            ((BytesMessage) message).readBytes(value);
            progress.consumed(value.length);
          } catch (JMSException error) {
            progress.failed(error);
          }
        });
    progress.waitForConsumer();
    consumer.close();
  }
}
