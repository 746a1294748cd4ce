import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/** Counts words with Kafka Streams, exactly once: ADDRESS SOURCE TARGET APPLICATION DIRECTORY. Runs until it is killed. */
public class Count {
    public static void main(String[] given) throws Exception {
        Properties properties = new Properties();
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, given[3]);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, given[4]);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        properties.put("consumer.auto.offset.reset", "earliest");
        properties.put("consumer.session.timeout.ms", 6000);
        properties.put("consumer.max.poll.records", 50);
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> source = builder.stream(given[1]);
        source.groupBy((key, value) -> value).count(Materialized.as("counts")).toStream()
            .mapValues(count -> Long.toString(count)).to(given[2], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        CountDownLatch ended = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close();
            ended.countDown();
        }));
        streams.start();
        ended.await();
    }
}
