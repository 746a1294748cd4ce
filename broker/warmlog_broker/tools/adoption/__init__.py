"""Taking topics over from the data directories of a stopped Kafka.

Both directories are locked meanwhile. The steps:

1. Check everything before writing anything: names, partitions and every batch in Kafka's files.
2. Copy the partitions into `.adopting` in our data directory, and verify the copies.
3. Write the names of the partitions' directories to `.adopting/journal`, then move them into the data directory.
4. Add their offsets to the checkpoints. Checkpoints of partitions without a topic are harmless.
5. Replace the metadata log by one that has the topics. **This commits**: before it no broker knows them.
6. Remove `.adopting`.

After a crash before step 5 there may be directories that belong to no topic; brokers ignore them, and the next adoption
removes those that the journal names. After a crash later than that, the topics are complete.

The marker of a clean stop remains: it names the logs that it covers, so the ends of the new ones are checked when a
broker opens them. A topic's leader epoch begins above all epochs in its logs, and new producer ids are above all of
theirs. Its settings keep everything, unless `AdoptionOptions.configs` says otherwise.
"""
