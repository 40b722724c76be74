import java.io.ByteArrayOutputStream;
import java.net.InetAddress;
import java.net.URI;
import java.net.http.*;
import java.nio.file.Path;
import java.util.*;
import org.apache.avro.Schema;
import org.apache.avro.generic.*;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;

/** Publishes orders of two hours ago: java Checkout DATACENTER BALANCER REGISTRY http://AUDITOR/counts SCHEMA COUNT. */
public final class Checkout {
  static final long AGE_MS = 2 * 3_600_000L; // so that their hour is over, and can be sealed

  /** The id of the subject's newest version, with which each value begins. The path is Confluent's. */
  static int schemaId(String registry, String subject) throws Exception {
    URI url = URI.create(registry + "/subjects/" + subject + "/versions/latest");
    HttpResponse<String> answer =
        Reporting.HTTP.send(HttpRequest.newBuilder(url).build(), HttpResponse.BodyHandlers.ofString());
    if (answer.statusCode() != 200) throw new IllegalStateException(answer.body());
    return new com.fasterxml.jackson.databind.ObjectMapper().readTree(answer.body()).get("id").asInt();
  }

  /** Byte 0, the schema's id, Avro's binary. */
  static byte[] framed(int id, GenericRecord event) throws Exception {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    bytes.write(java.nio.ByteBuffer.allocate(5).put((byte) 0).putInt(id).array());
    var encoder = EncoderFactory.get().binaryEncoder(bytes, null);
    new GenericDatumWriter<GenericRecord>(event.getSchema()).write(event, encoder);
    encoder.flush();
    return bytes.toByteArray();
  }

  public static void main(String[] given) throws Exception {
    String datacenter = given[0], balancer = given[1], registry = given[2], topic = "order-placed";
    Schema schema = new Schema.Parser().parse(Path.of(given[4]).toFile());
    int id = schemaId(registry, topic + "-value");
    Map<String, Object> settings = Map.of("bootstrap.servers", balancer, "acks", "all", "enable.idempotence", true,
        "delivery.timeout.ms", (int) Reporting.DELIVERY_MAX_MS);
    Reporting reporting = new Reporting(URI.create(given[3]), topic, AGE_MS);
    var timer = reporting.start();
    long firstMs = System.currentTimeMillis() - AGE_MS;
    try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new ByteArraySerializer())) {
      for (int n = 0; n < Integer.parseInt(given[5]); n++) {
        long timeMs = firstMs + n;
        GenericRecord header = new GenericRecordBuilder(schema.getField("header").schema())
            .set("time", timeMs).set("datacenter", datacenter).set("service", "checkout-java")
            .set("server", InetAddress.getLocalHost().getHostName()).set("guid", UUID.randomUUID().toString()).build();
        GenericRecord order = new GenericRecordBuilder(schema).set("header", header)
            .set("order_id", "java-" + firstMs + "-" + n).set("customer_id", n % 50L).set("total", 10.0 + n)
            .set("currency", "EUR").build();
        reporting.count(timeMs); // before the event is sent: what the client drops is then missed
        // The record's timestamp is the event's time: the audit counts by it, the load stores by it.
        producer.send(new ProducerRecord<>(topic, null, timeMs, "" + n % 50, framed(id, order)), (where, error) -> {
          if (error != null) System.err.println("not published: " + error);
        });
      }
    } // close() returns once every event is delivered or has failed
    reporting.end(timer);
  }
}
