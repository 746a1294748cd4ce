// Runs one task with @platformatic/kafka: ADDRESS TASK ARGUMENTS, as ../programs.py describes.

import { Admin, Consumer, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const [address, task, ...given] = process.argv.slice(2)
const options = { clientId: 'platformatic', bootstrapBrokers: [address] }
const TOPIC_RESOURCE = 2
const READ_COMMITTED = 1

function messages (topic, first, count) {
  return Array.from({ length: count }, (_, index) => {
    const number = String(first + index)
    return { topic, key: `k${number}`, value: `v${number}`, headers: { number } }
  })
}

async function produce (topic, compression, count) {
  const producer = new Producer({ ...options, serializers: stringSerializers, idempotent: true })
  await producer.send({ compression, messages: messages(topic, 0, Number(count)) })
  await producer.close()
}

async function read (consumer, topic, count) {
  const stream = await consumer.consume({
    autocommit: false, mode: 'committed', fallbackMode: 'earliest', topics: [topic], isolationLevel: READ_COMMITTED
  })
  let left = Number(count)
  for await (const message of stream) {
    console.log(`${message.key}=${message.value}`)
    await message.commit()
    left -= 1
    if (left === 0) break
  }
  await consumer.close(true)
}

async function consume (topic, groupId, count) {
  await read(new Consumer({ ...options, groupId, deserializers: stringDeserializers }), topic, count)
}

async function consumeNew (topic, groupId, count) {
  const deserializers = stringDeserializers
  await read(new Consumer({ ...options, groupId, groupProtocol: 'consumer', deserializers }), topic, count)
}

async function transact (topic, transactionalId, count) {
  const producer = new Producer({ ...options, serializers: stringSerializers, idempotent: true, transactionalId })
  for (const [round, end] of ['commit', 'abort', 'commit'].entries()) {
    const transaction = await producer.beginTransaction()
    await transaction.send({ messages: messages(topic, round * count, Number(count)) })
    await transaction[end]()
  }
  await producer.close()
}

async function admin (topic, groupId) {
  const admin = new Admin(options)
  const configs = [{ name: 'retention.ms', value: '5000' }]
  await admin.createTopics({ topics: [topic], partitions: 2, replicas: 1, configs })
  const resources = [{ resourceType: TOPIC_RESOURCE, resourceName: topic, configurationKeys: ['retention.ms'] }]
  const [described] = await admin.describeConfigs({ resources })
  for (const { name, value } of described.configs) console.log(name, value)
  await admin.createPartitions({ topics: [{ name: topic, count: 3 }] })
  const metadata = await admin.metadata({ topics: [topic], forceUpdate: true })
  console.log('partitions', metadata.topics.get(topic).partitionsCount)
  const [group] = await admin.listConsumerGroupOffsets({ groups: [groupId] })
  const consumer = new Consumer({ ...options, groupId: `${groupId}-ends`, deserializers: stringDeserializers })
  let lag = 0
  for (const { name, partitions } of group.topics) {
    const ends = (await consumer.listOffsets({ topics: [name] })).get(name)
    for (const { partitionIndex, committedOffset } of partitions) lag += Number(ends[partitionIndex] - committedOffset)
  }
  console.log('lag', lag)
  await consumer.close(true)
  await admin.deleteTopics({ topics: [topic] })
  console.log('deleted', !(await admin.listTopics()).includes(topic))
  await admin.close()
}

await { produce, consume, 'consume-consumer': consumeNew, transact, admin }[task](...given)
