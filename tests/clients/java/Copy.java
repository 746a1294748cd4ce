import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Copies a topic with Flink, exactly once, in a cluster within this process: ADDRESS SOURCE TARGET DIRECTORY [CHECKPOINT]. */
public class Copy {
    public static void main(String[] given) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.dir", "file://" + given[3]);
        settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        settings.setString("restart-strategy.type", "none");
        if (given.length > 4) settings.setString("execution.state-recovery.path", given[4]);
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        environment.enableCheckpointing(500, CheckpointingMode.EXACTLY_ONCE);
        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(given[0]).setTopics(given[1]).setGroupId("flink")
            .setStartingOffsets(OffsetsInitializer.earliest()).setValueOnlyDeserializer(new SimpleStringSchema()).build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(given[0]).setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("flink").setProperty("transaction.timeout.ms", "60000")
            .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                .setTopic(given[2]).setValueSerializationSchema(new SimpleStringSchema()).build())
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "source").uid("source")
            .sinkTo(sink).uid("sink");
        environment.execute("copy");
    }
}
