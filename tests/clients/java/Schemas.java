import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Prints the schema by which each record was written, as the registry knows its id: ADDRESS REGISTRY TOPIC COUNT. */
public class Schemas {
    public static void main(String[] given) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", given[0]);
        properties.put("group.id", "schemas");
        properties.put("auto.offset.reset", "earliest");
        int left = Integer.parseInt(given[3]);
        HttpClient registry = HttpClient.newHttpClient();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(given[2]));
            while (left > 0) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    int id = ByteBuffer.wrap(record.value()).getInt(1); // after a zero byte
                    URI where = URI.create(given[1] + "/schemas/ids/" + id);
                    HttpResponse<String> said =
                        registry.send(HttpRequest.newBuilder(where).build(), HttpResponse.BodyHandlers.ofString());
                    System.out.println(said.statusCode() + " " + said.body());
                    left--;
                }
            }
        }
    }
}
