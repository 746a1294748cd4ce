import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Runs one task with Kafka's Java clients: ADDRESS TASK ARGUMENTS, as ../programs.py describes. */
public class Clients {
    private static String address;

    public static void main(String[] given) throws Exception {
        address = given[0];
        switch (given[1]) {
            case "produce" -> produce(given[2], given[3], Integer.parseInt(given[4]));
            case "consume" -> consume(given[2], given[3], Integer.parseInt(given[4]), Map.of());
            case "consume-consumer" ->
                consume(given[2], given[3], Integer.parseInt(given[4]), Map.of("group.protocol", "consumer"));
            case "consume-cooperative" -> consume(given[2], given[3], Integer.parseInt(given[4]),
                Map.of("partition.assignment.strategy", CooperativeStickyAssignor.class.getName()));
            case "consume-static" ->
                consume(given[2], given[3], Integer.parseInt(given[4]), Map.of("group.instance.id", "one"));
            case "transact" -> transact(given[2], given[3], Integer.parseInt(given[4]));
            case "copy" -> copy(given[2], given[3], given[4], Integer.parseInt(given[5]));
            case "admin" -> admin(given[2], given[3]);
            default -> throw new IllegalArgumentException(given[1]);
        }
    }

    private static Properties properties(Map<String, String> more) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", address);
        properties.putAll(more);
        return properties;
    }

    private static KafkaProducer<String, String> producer(Map<String, String> more) {
        return new KafkaProducer<>(properties(more), new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(String group, Map<String, String> more) {
        Map<String, String> all = new HashMap<>(Map.of("group.id", group, "auto.offset.reset", "earliest",
            "enable.auto.commit", "false", "isolation.level", "read_committed", "max.poll.records", "100"));
        all.putAll(more);
        return new KafkaConsumer<>(properties(all), new StringDeserializer(), new StringDeserializer());
    }

    private static void send(KafkaProducer<String, String> producer, String topic, int first, int count) {
        for (int number = first; number < first + count; number++) {
            ProducerRecord<String, String> record = new ProducerRecord<>(topic, "k" + number, "v" + number);
            record.headers().add("number", Integer.toString(number).getBytes());
            producer.send(record, (metadata, error) -> {
                if (error != null) throw new IllegalStateException(error);
            });
        }
        producer.flush();
    }

    private static void produce(String topic, String codec, int count) {
        try (KafkaProducer<String, String> producer = producer(Map.of("compression.type", codec))) {
            send(producer, topic, 0, count);
        }
    }

    private static void consume(String topic, String group, int count, Map<String, String> more) {
        try (KafkaConsumer<String, String> consumer = consumer(group, more)) {
            consumer.subscribe(List.of(topic));
            int left = count;
            while (left > 0) {
                Map<TopicPartition, OffsetAndMetadata> read = new HashMap<>();
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    if (left == 0) break;
                    System.out.println(record.key() + "=" + record.value());
                    left--;
                    read.put(new TopicPartition(record.topic(), record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
                }
                consumer.commitSync(read);
            }
        }
    }

    private static void transact(String topic, String id, int count) {
        try (KafkaProducer<String, String> producer = producer(Map.of("transactional.id", id))) {
            producer.initTransactions();
            for (int round = 0; round < 3; round++) {
                producer.beginTransaction();
                send(producer, topic, round * count, count);
                if (round == 1) producer.abortTransaction();
                else producer.commitTransaction();
            }
        }
    }

    /** Copies records exactly once, their offsets being committed in the transactions; every second one is aborted first. */
    private static void copy(String from, String to, String group, int count) {
        try (KafkaProducer<String, String> producer = producer(Map.of("transactional.id", group));
                KafkaConsumer<String, String> consumer = consumer(group, Map.of())) {
            producer.initTransactions();
            consumer.subscribe(List.of(from));
            int left = count;
            while (left > 0) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
                if (records.isEmpty()) continue;
                Map<TopicPartition, OffsetAndMetadata> read = new HashMap<>();
                for (TopicPartition partition : records.partitions()) {
                    read.put(partition, new OffsetAndMetadata(consumer.position(partition)));
                }
                for (boolean commits : new boolean[] {false, true}) {
                    producer.beginTransaction();
                    records.forEach(record -> producer.send(new ProducerRecord<>(to, record.key(), record.value())));
                    producer.sendOffsetsToTransaction(read, consumer.groupMetadata());
                    if (commits) producer.commitTransaction();
                    else producer.abortTransaction();
                }
                left -= records.count();
            }
        }
    }

    private static void admin(String topic, String group) throws Exception {
        try (Admin admin = Admin.create(properties(Map.of()))) {
            NewTopic wanted = new NewTopic(topic, Optional.of(2), Optional.empty()).configs(Map.of("retention.ms", "5000"));
            admin.createTopics(List.of(wanted)).all().get();
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            System.out.println("retention.ms "
                + admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value());
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            System.out.println("partitions "
                + admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
            long lag = 0;
            for (Map.Entry<TopicPartition, OffsetAndMetadata> each :
                    admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().entrySet()) {
                TopicPartition partition = each.getKey();
                long end = admin.listOffsets(Map.of(partition, OffsetSpec.latest())).all().get().get(partition).offset();
                lag += end - each.getValue().offset();
            }
            System.out.println("lag " + lag);
            admin.describeConsumerGroups(List.of(group)).all().get();
            admin.deleteConsumerGroups(List.of(group)).all().get();
            admin.deleteTopics(List.of(topic)).all().get();
            Set<String> names = admin.listTopics().names().get();
            System.out.println("deleted " + !names.contains(topic));
        }
    }
}
