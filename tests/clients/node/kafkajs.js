// Runs one task with KafkaJS: ADDRESS TASK ARGUMENTS, as ../programs.py describes.
// KafkaJS compresses by gzip alone; the other codecs are plugged in as its documentation says.

import zlib from 'node:zlib'
import { lz4Compress, lz4Decompress } from '@platformatic/wasm-utils'
import kafkajs from 'kafkajs'
import SnappyCodec from 'kafkajs-snappy'

const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = kafkajs
const codecs = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD
}
CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => lz4Compress(encoder.buffer),
  decompress: async buffer => lz4Decompress(buffer)
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => zlib.zstdCompressSync(encoder.buffer),
  decompress: async buffer => zlib.zstdDecompressSync(buffer)
})

const [address, task, ...given] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'kafkajs', brokers: [address], logLevel: logLevel.ERROR })

function messages (first, count) {
  return Array.from({ length: count }, (_, index) => {
    const number = String(first + index)
    return { key: `k${number}`, value: `v${number}`, headers: { number } }
  })
}

async function produce (topic, codec, count) {
  const producer = kafka.producer({ idempotent: true })
  await producer.connect()
  await producer.send({ topic, compression: codecs[codec], messages: messages(0, Number(count)) })
  await producer.disconnect()
}

async function consume (topic, groupId, count) {
  const consumer = kafka.consumer({ groupId, readUncommitted: false })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  let left = Number(count)
  await new Promise((resolve, reject) => {
    const readBatch = async ({ batch, resolveOffset, commitOffsetsIfNecessary, uncommittedOffsets }) => {
      for (const { key, value, offset } of batch.messages) {
        if (left === 0) break
        console.log(`${key}=${value}`)
        resolveOffset(offset)
        left -= 1
      }
      await commitOffsetsIfNecessary(uncommittedOffsets())
      if (left === 0) resolve()
    }
    consumer.run({ autoCommit: true, eachBatchAutoResolve: false, eachBatch: readBatch }).catch(reject)
  })
  await consumer.disconnect()
}

async function transact (topic, transactionalId, count) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, transactionalId })
  await producer.connect()
  for (const [round, end] of ['commit', 'abort', 'commit'].entries()) {
    const transaction = await producer.transaction()
    await transaction.send({ topic, messages: messages(round * count, Number(count)) })
    await transaction[end]()
  }
  await producer.disconnect()
}

async function admin (topic, groupId) {
  const admin = kafka.admin()
  await admin.connect()
  const configEntries = [{ name: 'retention.ms', value: '5000' }]
  await admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1, configEntries }] })
  const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic, configNames: ['retention.ms'] }]
  const described = await admin.describeConfigs({ resources })
  for (const { configName, configValue } of described.resources[0].configEntries) console.log(configName, configValue)
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  const metadata = await admin.fetchTopicMetadata({ topics: [topic] })
  console.log('partitions', metadata.topics[0].partitions.length)
  let lag = 0
  for (const { topic: read, partitions } of await admin.fetchOffsets({ groupId })) {
    const ends = new Map((await admin.fetchTopicOffsets(read)).map(each => [each.partition, Number(each.high)]))
    for (const { partition, offset } of partitions) {
      if (Number(offset) >= 0) lag += ends.get(partition) - Number(offset)
    }
  }
  console.log('lag', lag)
  await admin.deleteTopics({ topics: [topic] })
  console.log('deleted', !(await admin.listTopics()).includes(topic))
  await admin.disconnect()
}

await { produce, consume, transact, admin }[task](...given)
