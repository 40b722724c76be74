import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConfirmListener;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.MessageProperties;
import java.io.IOException;
import java.util.Map;

/**
 * RabbitMQ's Java client on a quorum queue: `produce` or `consume`, on one connection and one channel.
 *
 * <p>The protocol has no batches: each message is published by itself. The producer goes on while at most
 * `--outstanding` messages are unconfirmed. The consumer acknowledges half of its `--prefetch` at once.
 */
public final class AmqpBench {
  public static void main(String[] arguments) throws Exception {
    Options options = new Options(arguments);
    ConnectionFactory factory = new ConnectionFactory();
    factory.setUri(options.text("url"));
    try (Connection connection = factory.newConnection();
        Channel channel = connection.createChannel()) {
      String queue = options.text("queue");
      channel.queueDeclare(queue, true, false, false, Map.of("x-queue-type", "quorum"));
      switch (options.verb) {
        case "produce" -> produce(options, channel, queue);
        case "consume" -> consume(options, channel, queue);
        case "delete" -> channel.queueDelete(queue);
        default -> throw new IllegalArgumentException("produce, consume or delete, not " + options.verb);
      }
    }
  }

  private static void produce(Options options, Channel channel, String queue) throws Exception {
    Progress progress = new Progress(options, options.count("outstanding"));
    byte[] value = Measure.value(options.count("value-bytes"));
    channel.addConfirmListener(new Confirms(progress));
    channel.confirmSelect();
    while (progress.maySend(1)) {
      channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, value);
    }
    progress.finishProducing();
  }

  private static void consume(Options options, Channel channel, String queue) throws Exception {
    Progress progress = new Progress(options, 1);
    int prefetch = options.count("prefetch");
    int ackEvery = Math.max(1, prefetch / 2);
    channel.basicQos(prefetch);
    String tag =
        channel.basicConsume(
            queue,
            false,
            new DefaultConsumer(channel) {
              @Override
              public void handleDelivery(
                  String consumer, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
                  throws IOException {
                if (progress.consumed(body.length) % ackEvery == 0) {
                  channel.basicAck(envelope.getDeliveryTag(), true);
                }
              }
            });
    progress.waitForConsumer();
    channel.basicCancel(tag);
    channel.basicAck(0, true); // all that are left
  }

  /** Counts confirms: one may stand for all messages up to its number. */
  private static final class Confirms implements ConfirmListener {
    private final Progress progress;
    private final java.util.TreeSet<Long> early = new java.util.TreeSet<>();
    private long next = 1;

    Confirms(Progress progress) {
      this.progress = progress;
    }

    @Override
    public void handleAck(long number, boolean multiple) {
      int count = 0;
      if (multiple) {
        for (; next <= number; next++) {
          if (!early.remove(next)) {
            count++;
          }
        }
      } else {
        early.add(number);
        count = 1;
      }
      while (early.remove(next)) {
        next++;
      }
      progress.confirmed(count);
    }

    @Override
    public void handleNack(long number, boolean multiple) {
      progress.failed(new IOException("RabbitMQ refused message " + number));
    }
  }
}
