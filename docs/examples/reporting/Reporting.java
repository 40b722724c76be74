import java.io.IOException;
import java.net.InetAddress;
import java.net.URI;
import java.net.http.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.Collectors;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.StringSerializer;

/** Publishes events, and reports how many: java Reporting BALANCER http://AUDITOR/counts TOPIC COUNT. */
public final class Reporting {
  static final long BUCKET_MS = 600_000, DELIVERY_MAX_MS = 120_000;
  static final HttpClient HTTP = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
  final String publisher = UUID.randomUUID().toString(), topic;
  final URI url;
  final long startedMs = System.currentTimeMillis(), lateMaxMs;
  final Map<Long, Long> counts = new TreeMap<>(); // start of a bucket -> events handed over
  long number, arrived; // of the last report, and of the last one that arrived

  /** lateMaxMs: how old an event may be when it is published; a bucket is final so much later. */
  Reporting(URI url, String topic, long lateMaxMs) { this.url = url; this.topic = topic; this.lateMaxMs = lateMaxMs; }

  synchronized void count(long timeMs) { counts.merge(timeMs - timeMs % BUCKET_MS, 1L, Long::sum); }

  /** A report that fails costs nothing: the next one has the same counts, or newer ones. */
  synchronized void report(boolean closed) throws IOException, InterruptedException {
    long now = System.currentTimeMillis(), endedMs = now - lateMaxMs - BUCKET_MS - 2 * DELIVERY_MAX_MS;
    String tallies = counts.entrySet().stream().map(each -> String.format(
        "{\"topic\":\"%s\",\"bucket_start_ms\":%d,\"handed_over_count\":%d,\"final\":%b}",
        topic, each.getKey(), each.getValue(), closed || each.getKey() < endedMs)).collect(Collectors.joining(","));
    String body = String.format("{\"publisher\":\"%s\",\"service\":\"checkout\",\"server\":\"%s\",\"started_ms\":%d,"
        + "\"report_number\":%d,\"arrived_number\":%d,\"reported_until_ms\":%d,\"closed\":%b,\"tallies\":[%s]}",
        publisher, InetAddress.getLocalHost().getHostName(), startedMs, ++number, arrived, now, closed, tallies);
    HttpRequest request = HttpRequest.newBuilder(url).POST(HttpRequest.BodyPublishers.ofString(body)).build();
    HttpResponse<String> response = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
    if (response.statusCode() != 200) throw new IOException(response.body());
    arrived = number;
    counts.keySet().removeIf(start -> start < endedMs); // they are final, and have arrived
  }

  ScheduledExecutorService start() {
    ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
    timer.scheduleWithFixedDelay(() -> {
      try { report(false); } catch (Exception error) { System.err.println("not reported: " + error); }
    }, 0, 10, TimeUnit.SECONDS);
    return timer;
  }

  /** Call it once the producer is closed. */
  void end(ScheduledExecutorService timer) throws IOException, InterruptedException {
    timer.shutdown();
    timer.awaitTermination(1, TimeUnit.MINUTES);
    report(true);
  }

  public static void main(String[] given) throws Exception {
    Map<String, Object> settings = Map.of("bootstrap.servers", given[0], "acks", "all", "enable.idempotence", true,
        "delivery.timeout.ms", (int) DELIVERY_MAX_MS);
    Reporting reporting = new Reporting(URI.create(given[1]), given[2], 0);
    ScheduledExecutorService timer = reporting.start();
    try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
      for (int n = 0; n < Integer.parseInt(given[3]); n++) {
        long now = System.currentTimeMillis();
        reporting.count(now); // before the event is sent: what the client drops is then missed
        producer.send(new ProducerRecord<>(reporting.topic, null, now, "key-" + n, "event " + n), (where, error) -> {
          if (error != null) System.err.println("not published: " + error);
        });
      }
    } // close() returns once every event is delivered or has failed
    reporting.end(timer);
  }
}
