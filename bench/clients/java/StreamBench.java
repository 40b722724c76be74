import com.rabbitmq.stream.Address;
import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.codec.SimpleCodec;
import java.io.IOException;

/**
 * RabbitMQ's stream client: `create`, `produce`, `consume` or `delete` on one stream, on one connection.
 *
 * <p>The client collects up to `--batch` messages into a request; at most `--outstanding` are unconfirmed. The
 * values travel as they are: `SimpleCodec` wraps them in no AMQP 1.0 message, which is the fastest that there is.
 */
public final class StreamBench {
  public static void main(String[] arguments) throws Exception {
    Options options = new Options(arguments);
    String host = options.text("host");
    int port = options.count("port");
    try (Environment environment =
        Environment.builder()
            .host(host)
            .port(port)
            .addressResolver(unused -> new Address(host, port))
            .codec(new SimpleCodec())
            .build()) {
      String stream = options.text("stream");
      switch (options.verb) {
        case "create" -> environment.streamCreator().stream(stream).create();
        case "produce" -> produce(options, environment, stream);
        case "consume" -> consume(options, environment, stream);
        case "delete" -> environment.deleteStream(stream);
        default ->
            throw new IllegalArgumentException("create, produce, consume or delete, not " + options.verb);
      }
    }
  }

  private static void produce(Options options, Environment environment, String stream) throws Exception {
    int outstanding = options.count("outstanding");
    Progress progress = new Progress(options, outstanding);
    byte[] value = Measure.value(options.count("value-bytes"));
    try (Producer producer =
        environment
            .producerBuilder()
            .stream(stream)
            .batchSize(options.count("batch"))
            .maxUnconfirmedMessages(outstanding)
            .build()) {
      while (progress.maySend(1)) {
        producer.send(
            producer.messageBuilder().addData(value).build(),
            status -> {
              if (!status.isConfirmed()) {
                progress.failed(new IOException("RabbitMQ refused a message, code " + status.getCode()));
              }
              progress.confirmed(1);
            });
      }
      progress.finishProducing();
    }
  }

  private static void consume(Options options, Environment environment, String stream) throws Exception {
    Progress progress = new Progress(options, 1);
    try (Consumer consumer =
        environment
            .consumerBuilder()
            .stream(stream)
            .offset(OffsetSpecification.first())
            .messageHandler((context, message) -> progress.consumed(message.getBodyAsBinary().length))
            .build()) {
      progress.waitForConsumer();
    }
  }
}
