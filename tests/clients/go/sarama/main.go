// Command sarama runs one task with sarama: ADDRESS TASK ARGUMENTS, as ../../programs.py describes.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

func main() {
	log.SetFlags(0)
	address, task, arguments := os.Args[1], os.Args[2], os.Args[3:]
	tasks := map[string]func(string, []string) error{
		"produce": produce, "consume": consume, "transact": transact, "admin": admin, "export": export,
	}
	if err := tasks[task](address, arguments); err != nil {
		log.Fatal(err)
	}
}

func config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Return.Successes = true
	c.Producer.Idempotent = true
	c.Net.MaxOpenRequests = 1
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	c.Consumer.Return.Errors = true
	return c
}

func messages(topic string, first, count int) []*sarama.ProducerMessage {
	all := make([]*sarama.ProducerMessage, count)
	for i := range all {
		number := strconv.Itoa(first + i)
		all[i] = &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder("k" + number), Value: sarama.StringEncoder("v" + number),
			Headers: []sarama.RecordHeader{{Key: []byte("number"), Value: []byte(number)}},
		}
	}
	return all
}

func produce(address string, arguments []string) error {
	count, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	c := config()
	c.Producer.Compression = codecs[arguments[1]]
	producer, err := sarama.NewSyncProducer([]string{address}, c)
	if err != nil {
		return err
	}
	defer producer.Close()
	return producer.SendMessages(messages(arguments[0], 0, count))
}

type reader struct {
	left int
	done context.CancelFunc
}

func (*reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		if r.left == 0 {
			return nil
		}
		fmt.Printf("%s=%s\n", message.Key, message.Value)
		session.MarkMessage(message, "")
		if r.left--; r.left == 0 {
			session.Commit()
			r.done()
			return nil
		}
	}
	return nil
}

func consume(address string, arguments []string) error {
	count, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	ctx, done := context.WithTimeout(context.Background(), time.Minute)
	defer done()
	group, err := sarama.NewConsumerGroup([]string{address}, arguments[1], config())
	if err != nil {
		return err
	}
	handler := &reader{count, done}
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{arguments[0]}, handler); err != nil {
			return err
		}
	}
	if handler.left > 0 {
		return fmt.Errorf("%d records were not read", handler.left)
	}
	return group.Close()
}

func transact(address string, arguments []string) error {
	topic := arguments[0]
	count, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	c := config()
	c.Producer.Transaction.ID = arguments[1]
	producer, err := sarama.NewSyncProducer([]string{address}, c)
	if err != nil {
		return err
	}
	defer producer.Close()
	for round, end := range []func() error{producer.CommitTxn, producer.AbortTxn, producer.CommitTxn} {
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		if err := producer.SendMessages(messages(topic, round*count, count)); err != nil {
			return err
		}
		if err := end(); err != nil {
			return err
		}
	}
	return nil
}

func admin(address string, arguments []string) error {
	topic, group := arguments[0], arguments[1]
	admin, err := sarama.NewClusterAdmin([]string{address}, config())
	if err != nil {
		return err
	}
	defer admin.Close()
	retention := "5000"
	detail := &sarama.TopicDetail{
		NumPartitions: 2, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &retention},
	}
	if err := admin.CreateTopic(topic, detail, false); err != nil {
		return err
	}
	entries, err := admin.DescribeConfig(
		sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}})
	if err != nil {
		return err
	}
	for _, entry := range entries {
		fmt.Println(entry.Name, entry.Value)
	}
	if err := admin.CreatePartitions(topic, 3, nil, false); err != nil {
		return err
	}
	described, err := admin.DescribeTopics([]string{topic})
	if err != nil {
		return err
	}
	fmt.Println("partitions", len(described[0].Partitions))
	lag, err := lagOf(admin, address, group)
	if err != nil {
		return err
	}
	fmt.Println("lag", lag)
	if err := admin.DeleteTopic(topic); err != nil {
		return err
	}
	topics, err := admin.ListTopics()
	if err != nil {
		return err
	}
	_, found := topics[topic]
	fmt.Println("deleted", !found)
	return nil
}

func lagOf(admin sarama.ClusterAdmin, address, group string) (int64, error) {
	client, err := sarama.NewClient([]string{address}, config())
	if err != nil {
		return 0, err
	}
	defer client.Close()
	committed, err := admin.ListConsumerGroupOffsets(group, nil)
	if err != nil {
		return 0, err
	}
	lag := int64(0)
	for topic, partitions := range committed.Blocks {
		for partition, block := range partitions {
			end, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
			if err != nil {
				return 0, err
			}
			lag += end - block.Offset
		}
	}
	return lag, nil
}

// export asks what an exporter of metrics asks, with the versions of an old broker: the ends of each partition, and of
// each group its members and its committed offsets. It prints the figures that come of them.
func export(address string, arguments []string) error {
	c := config()
	c.Version = sarama.V2_0_0_0
	client, err := sarama.NewClient([]string{address}, c)
	if err != nil {
		return err
	}
	defer client.Close()
	topics, err := client.Topics()
	if err != nil {
		return err
	}
	ends := map[string]map[int32]int64{}
	for _, topic := range topics {
		partitions, err := client.Partitions(topic)
		if err != nil {
			return err
		}
		ends[topic] = map[int32]int64{}
		for _, partition := range partitions {
			leader, err := client.Leader(topic, partition)
			if err != nil {
				return err
			}
			newest, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
			if err != nil {
				return err
			}
			oldest, err := client.GetOffset(topic, partition, sarama.OffsetOldest)
			if err != nil {
				return err
			}
			replicas, err := client.Replicas(topic, partition)
			if err != nil {
				return err
			}
			inSync, err := client.InSyncReplicas(topic, partition)
			if err != nil {
				return err
			}
			ends[topic][partition] = newest
			fmt.Println("partition", topic, partition, oldest, newest, leader.ID() == replicas[0], len(inSync))
		}
	}
	for _, broker := range client.Brokers() {
		if err := broker.Open(client.Config()); err != nil && err != sarama.ErrAlreadyConnected {
			return err
		}
		if err := exportGroups(broker, ends); err != nil {
			return err
		}
	}
	return nil
}

func exportGroups(broker *sarama.Broker, ends map[string]map[int32]int64) error {
	listed, err := broker.ListGroups(&sarama.ListGroupsRequest{})
	if err != nil {
		return err
	}
	names := []string{}
	for name := range listed.Groups {
		names = append(names, name)
	}
	described, err := broker.DescribeGroups(&sarama.DescribeGroupsRequest{Groups: names})
	if err != nil {
		return err
	}
	for _, group := range described.Groups {
		request := &sarama.OffsetFetchRequest{ConsumerGroup: group.GroupId, Version: 1}
		for topic, partitions := range ends {
			for partition := range partitions {
				request.AddPartition(topic, partition)
			}
		}
		committed, err := broker.FetchOffset(request)
		if err != nil {
			return err
		}
		lag := int64(0)
		for topic, partitions := range committed.Blocks {
			for partition, block := range partitions {
				if block.Offset >= 0 {
					lag += ends[topic][partition] - block.Offset
				}
			}
		}
		fmt.Println("group", group.GroupId, len(group.Members), group.Err == sarama.ErrNoError, lag)
	}
	return nil
}
