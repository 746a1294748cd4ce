import java.io.File;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.checkpoint.PartitionMetadataFile;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;

/** Prints what Kafka's own classes read from small files: a line for each entry, in an order of its own. */
public class ReadFiles {
    public static void main(String[] paths) throws Exception {
        LogDirFailureChannel failures = new LogDirFailureChannel(1);
        for (String path : paths) {
            File file = new File(path);
            if (file.getName().equals("leader-epoch-checkpoint")) {
                new LeaderEpochCheckpointFile(file, failures).read().forEach(
                    entry -> System.out.println("epoch " + entry.epoch + " from " + entry.startOffset));
            } else if (file.getName().equals("partition.metadata")) {
                System.out.println("topic " + new PartitionMetadataFile(file, failures).read().topicId());
            } else {
                new OffsetCheckpointFile(file, failures).read().forEach(
                    (partition, offset) -> System.out.println(partition + " at " + offset));
            }
        }
    }
}
