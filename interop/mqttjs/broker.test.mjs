// MQTT.js against a running broker, over whatever transport BROKER_URL names
// (mqtt://host:port or ws://host:port/mqtt). The tests of the state store are
// left out where BROKER_IS_HOLDFAST is not set.

import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { after, describe, test } from 'node:test'
import mqtt from 'mqtt'

const url = process.env.BROKER_URL
if (!url) throw new Error('BROKER_URL says which broker to test, for example mqtt://127.0.0.1:1883')

// BROKER_SITE is a directory of certificates for mutual TLS.
const site = process.env.BROKER_SITE
const certificates = site
  ? { ca: readFileSync(`${site}/ca.crt`), cert: readFileSync(`${site}/admin.crt`), key: readFileSync(`${site}/admin.key`) }
  : {}

// BROKER_USERNAME and BROKER_PASSWORD are those of every client, if the broker asks for them.
const login = process.env.BROKER_USERNAME
  ? { username: process.env.BROKER_USERNAME, password: process.env.BROKER_PASSWORD }
  : {}

const unique = (what) => `${what}-${randomUUID()}`
// What the policy of the tests allows (testdata/policy.yaml): topics and keys begin like these.
const uniqueTopic = (what) => unique(`interop/${what}`)
const uniqueKey = (what) => unique(`interop:${what}`)
const clients = []
after(() => Promise.all(clients.map((c) => c.endAsync(true))))

// open connects a client that never reconnects by itself. What it receives is
// collected from before the CONNACK on, because a resumed session's messages
// follow it at once.
async function open(options = {}) {
  const client = mqtt.connect(url, {
    protocolVersion: 5,
    clientId: unique('mqttjs'),
    reconnectPeriod: 0,
    connectTimeout: 10_000,
    ...certificates,
    ...login,
    ...options,
  })
  clients.push(client)
  client.inbox = []
  client.on('message', (topic, payload, packet) => {
    client.inbox.push(packet)
    client.emit('collected')
  })
  client.on('error', (error) => (client.failure = error))
  const [connack] = await once(client, 'connect', patience())
  client.connack = connack
  return client
}

const patience = () => ({ signal: AbortSignal.timeout(15_000) })

// take waits for the next n messages and removes them from the inbox.
async function take(client, n = 1) {
  await collected([client], () => client.inbox.length >= n)
  return client.inbox.splice(0, n)
}

const base16 = (string) => Buffer.from(string).toString('hex').toUpperCase()
const text = (packet) => packet.payload.toString()
const texts = (packets) => packets.map(text)

// collected waits until what these clients have received is what a test wants.
async function collected(receivers, enough) {
  const { signal } = patience()
  try {
    while (!enough()) await Promise.race(receivers.map((client) => once(client, 'collected', { signal })))
  } catch (error) {
    const state = receivers.map((c) => `${c.connected ? 'connected' : 'not connected'}, has ${JSON.stringify(texts(c.inbox))}, ${c.failure ?? 'no error'}`)
    throw new Error(`messages did not come: ${state.join('; ')}`, { cause: error })
  }
}

const numbers = (from, to) => Array.from({ length: to - from }, (_, i) => String(from + i))

// publishBurst sends several at once. MQTT.js takes no notice of the broker's
// Receive Maximum, so the bursts here are short.
const publishBurst = (client, topic, payloads, qos) =>
  Promise.all(payloads.map((payload) => client.publishAsync(topic, payload, { qos })))

// drop breaks the connection without a DISCONNECT.
async function drop(client) {
  const closed = once(client, 'close', patience())
  client.stream.destroy()
  await closed
}

describe(`MQTT.js ${mqtt.MqttClient.VERSION ?? ''} over ${new URL(url).protocol}`, { concurrency: true }, () => {
  test('connects with 5 and is told what it may do', async () => {
    const client = await open()
    assert.equal(client.connack.reasonCode, 0)
    assert.equal(client.connack.sessionPresent, false)

    client.sendPing()
    for (;;) {
      const [packet] = await once(client, 'packetreceive', patience())
      if (packet.cmd === 'pingresp') break
    }
  })

  test('connects with 3.1.1', async () => {
    const topic = uniqueTopic('v311')
    const client = await open({ protocolVersion: 4 })
    await client.subscribeAsync(topic, { qos: 2 })
    await client.publishAsync(topic, 'hello', { qos: 2 })
    const [packet] = await take(client)
    assert.equal(text(packet), 'hello')
    assert.equal(packet.qos, 2)
  })

  test('is given a client ID if it has none', async () => {
    const client = await open({ clientId: '' })
    assert.ok(client.connack.properties.assignedClientIdentifier)
  })

  for (const sent of [0, 1, 2]) {
    for (const granted of [0, 1, 2]) {
      test(`QoS ${sent} to a subscription of QoS ${granted}`, async () => {
        const topic = uniqueTopic('qos')
        const [publisher, subscriber] = await Promise.all([open(), open()])
        const [grant] = await subscriber.subscribeAsync(topic, { qos: granted })
        assert.equal(grant.qos, granted)
        await publishBurst(publisher, topic, numbers(0, 10), sent)

        const packets = await take(subscriber, 10)
        assert.deepEqual(texts(packets), numbers(0, 10), 'all of them, once, in order')
        for (const packet of packets) {
          assert.equal(packet.qos, Math.min(sent, granted))
          assert.equal(packet.retain, false)
        }
      })
    }
  }

  // MQTT.js itself gives up a connection on which too much QoS 2 is under way.
  for (const qos of [1, 2]) {
    test(`QoS ${qos} under way at once is bounded by the client's Receive Maximum`, async () => {
      const topic = uniqueTopic('receive-maximum')
      const [publisher, subscriber] = await Promise.all([open(), open({ properties: { receiveMaximum: 2 } })])
      await subscriber.subscribeAsync(topic, { qos })
      for (let i = 0; i < 50; i += 10) await publishBurst(publisher, topic, numbers(i, i + 10), qos)
      assert.deepEqual(texts(await take(subscriber, 50)), numbers(0, 50))
    })
  }

  test('payloads: empty, every byte, 200,000 bytes', async () => {
    const topic = uniqueTopic('payload')
    const client = await open()
    await client.subscribeAsync(topic, { qos: 1 })
    for (const payload of [Buffer.alloc(0), Buffer.from([...Array(256).keys()]), randomBytes(200_000)]) {
      await client.publishAsync(topic, payload, { qos: 1 })
      const [packet] = await take(client)
      assert.ok(packet.payload.equals(payload), `${payload.length} bytes come back as they were sent`)
    }
  })

  test('topic aliases in both directions', async () => {
    const topics = [uniqueTopic('alias/a'), uniqueTopic('alias/b')]
    const publisher = await open({ autoAssignTopicAlias: true })
    const subscriber = await open({ properties: { topicAliasMaximum: 10 } })
    await subscriber.subscribeAsync(topics, { qos: 1 })
    for (let i = 0; i < 6; i++) await publisher.publishAsync(topics[i % 2], String(i), { qos: 1 })
    const packets = await take(subscriber, 6)
    assert.deepEqual(texts(packets), ['0', '1', '2', '3', '4', '5'])
  })

  test('wildcards, subscription identifiers, No Local and unsubscribing', async () => {
    const root = uniqueTopic('filters')
    const client = await open()
    await client.subscribeAsync(`${root}/+/temperature`, { qos: 1, properties: { subscriptionIdentifier: 7 } })
    await client.subscribeAsync(`${root}/own/#`, { qos: 1, nl: true })

    await client.publishAsync(`${root}/own/note`, 'not to myself', { qos: 1 })
    await client.publishAsync(`${root}/kitchen/temperature`, '21', { qos: 1 })
    const [packet] = await take(client)
    assert.equal(packet.topic, `${root}/kitchen/temperature`)
    assert.equal(packet.properties.subscriptionIdentifier, 7)

    await client.unsubscribeAsync(`${root}/+/temperature`)
    await client.publishAsync(`${root}/kitchen/temperature`, '22', { qos: 1 })
    await client.subscribeAsync(`${root}/end`, { qos: 1 })
    await client.publishAsync(`${root}/end`, 'end', { qos: 1 })
    assert.deepEqual(texts(await take(client)), ['end'], 'nothing after UNSUBACK')
  })

  test('retained messages', async () => {
    const root = uniqueTopic('retained')
    const publisher = await open()
    await publisher.publishAsync(`${root}/a`, 'first', { qos: 1, retain: true })
    await publisher.publishAsync(`${root}/a`, 'kept', { qos: 1, retain: true, properties: { contentType: 'text/plain', userProperties: { k: 'v' } } })

    const subscriber = await open()
    await subscriber.subscribeAsync(`${root}/#`, { qos: 1 })
    const [kept] = await take(subscriber)
    assert.equal(text(kept), 'kept')
    assert.equal(kept.retain, true)
    assert.equal(kept.properties.contentType, 'text/plain')
    assert.equal(kept.properties.userProperties.k, 'v')

    // A subscriber that is there gets it without the flag, unless it asks for Retain As Published.
    await publisher.publishAsync(`${root}/a`, 'live', { qos: 1, retain: true })
    assert.equal((await take(subscriber))[0].retain, false)
    const asPublished = await open()
    await asPublished.subscribeAsync(`${root}/#`, { qos: 1, rap: true, rh: 2 })
    await publisher.publishAsync(`${root}/a`, 'as published', { qos: 1, retain: true })
    const [first] = await take(asPublished)
    assert.equal(text(first), 'as published', 'Retain Handling 2 sends nothing that was there before')
    assert.equal(first.retain, true)

    // An empty one removes it.
    await publisher.publishAsync(`${root}/a`, '', { qos: 1, retain: true })
    const late = await open()
    await late.subscribeAsync(`${root}/#`, { qos: 1 })
    await publisher.publishAsync(`${root}/b`, 'new', { qos: 1 })
    assert.deepEqual(texts(await take(late)), ['new'])
  })

  test('a will is published when the connection breaks, and not after DISCONNECT', async () => {
    const topic = uniqueTopic('will')
    const watcher = await open()
    await watcher.subscribeAsync(topic, { qos: 1 })
    const will = (payload) => ({
      will: { topic, payload: Buffer.from(payload), qos: 1, retain: false, properties: { willDelayInterval: 0, contentType: 'text/plain', userProperties: { why: 'gone' } } },
    })

    const orderly = await open(will('orderly'))
    await orderly.endAsync()
    const broken = await open(will('broken'))
    await drop(broken)

    const [packet] = await take(watcher)
    assert.equal(text(packet), 'broken')
    assert.equal(packet.qos, 1)
    assert.equal(packet.properties.contentType, 'text/plain')
    assert.equal(packet.properties.userProperties.why, 'gone')
    assert.equal(packet.properties.willDelayInterval, undefined)
  })

  test('a delayed will is withdrawn when the session resumes', async () => {
    const topic = uniqueTopic('will')
    const watcher = await open()
    await watcher.subscribeAsync(topic, { qos: 1 })
    const session = { clientId: unique('mqttjs'), clean: false, properties: { sessionExpiryInterval: 60 } }
    const client = await open({ ...session, will: { topic, payload: Buffer.from('too soon'), qos: 1, retain: false, properties: { willDelayInterval: 30 } } })
    await drop(client)
    const resumed = await open(session)
    assert.equal(resumed.connack.sessionPresent, true)
    await resumed.publishAsync(topic, 'back', { qos: 1 })
    assert.deepEqual(texts(await take(watcher)), ['back'])
  })

  test('a shared subscription gives every message to one member', async () => {
    const topic = uniqueTopic('shared')
    const filter = `$share/${unique('group')}/${topic}`
    const members = await Promise.all([open(), open(), open()])
    for (const member of members) await member.subscribeAsync(filter, { qos: 1 })
    const everyone = await open()
    await everyone.subscribeAsync(topic, { qos: 1 })

    const publisher = await open()
    const sent = numbers(0, 60)
    for (let i = 0; i < 60; i += 10) await publishBurst(publisher, topic, sent.slice(i, i + 10), 1)
    assert.deepEqual(texts(await take(everyone, sent.length)), sent)

    const received = () => members.flatMap((member) => texts(member.inbox))
    await collected(members, () => received().length >= sent.length)
    assert.deepEqual(received().sort(), sent.sort(), 'each of them once')
  })

  test('a session is resumed with what came meanwhile', async () => {
    const topic = uniqueTopic('session')
    const session = { clientId: unique('mqttjs'), clean: false, properties: { sessionExpiryInterval: 60 } }
    const publisher = await open()
    let client = await open(session)
    assert.equal(client.connack.sessionPresent, false)
    await client.subscribeAsync(topic, { qos: 2 })

    for (const leave of [(c) => c.endAsync(), drop]) {
      await leave(client)
      for (const qos of [1, 2, 1]) await publisher.publishAsync(topic, `QoS ${qos}`, { qos })
      client = await open(session)
      assert.equal(client.connack.sessionPresent, true)
      // MQTT.js hands out QoS 2 with PUBREL, so possibly after what was sent later.
      assert.deepEqual(texts(await take(client, 3)).sort(), ['QoS 1', 'QoS 1', 'QoS 2'])
      await publisher.publishAsync(topic, 'live', { qos: 1 })
      assert.deepEqual(texts(await take(client)), ['live'], 'the subscription is still there')
      // Once this is answered the acknowledgements have arrived, and nothing comes again.
      await client.publishAsync(uniqueTopic('last'), '', { qos: 1 })
    }

    // Clean Start ends it.
    await client.endAsync()
    await publisher.publishAsync(topic, 'for nobody', { qos: 1 })
    client = await open({ ...session, clean: true })
    assert.equal(client.connack.sessionPresent, false)
    await client.subscribeAsync(topic, { qos: 1 })
    await publisher.publishAsync(topic, 'new', { qos: 1 })
    assert.deepEqual(texts(await take(client)), ['new'])
  })

  test('a second connection takes the session over', async () => {
    const session = { clientId: unique('mqttjs'), clean: false, properties: { sessionExpiryInterval: 60 } }
    const first = await open(session)
    const told = once(first, 'disconnect', patience())
    const second = await open(session)
    assert.equal(second.connack.sessionPresent, true)
    const [disconnect] = await told
    assert.equal(disconnect.reasonCode, 0x8e)
  })

  test('every property of a message arrives as it was sent, and no other', async () => {
    const topic = uniqueTopic('properties')
    const client = await open()
    await client.subscribeAsync(topic, { qos: 1 })
    const properties = {
      payloadFormatIndicator: true,
      responseTopic: 'interop/answer/here',
      correlationData: Buffer.from([0, 1, 2, 255]),
      contentType: 'application/json',
      userProperties: { one: 'is', several: ['a', 'b', 'a'], empty: '', unicode: 'grüße 🌍' },
    }
    await client.publishAsync(topic, '{}', { qos: 1, properties: { ...properties, messageExpiryInterval: 100 } })
    const [packet] = await take(client)
    const { messageExpiryInterval, ...rest } = packet.properties
    // MQTT.js builds these without a prototype.
    assert.deepEqual({ ...rest, userProperties: { ...rest.userProperties } }, properties)
    assert.ok(messageExpiryInterval > 90 && messageExpiryInterval <= 100, `what is left of its expiry: ${messageExpiryInterval}`)

    await client.publishAsync(topic, 'bare', { qos: 1 })
    const [bare] = await take(client)
    assert.deepEqual({ ...bare.properties }, {})
  })

  test('the state store by hand', { skip: !process.env.BROKER_IS_HOLDFAST }, async () => {
    const client = await open()
    const invoke = await caller(client)
    const key = uniqueKey('key')

    assert.equal((await invoke('GET', key)).reply, '$-1\r\n')

    const set = await invoke('SET', key, 'value')
    assert.equal(set.reply, '+OK\r\n')
    assert.match(set.user.__ts, /^\d+:\d+:.+$/)
    assert.equal(set.user.__stat, '200')
    assert.equal(set.user.__protVer, '1.0')
    assert.equal(set.properties.contentType, 'application/octet-stream')
    assert.equal(set.properties.payloadFormatIndicator, false)

    const get = await invoke('GET', key)
    assert.equal(get.reply, '$5\r\nvalue\r\n')
    assert.equal(get.user.__ts, set.user.__ts)

    // A condition that isn't met, a wrong request, any case.
    assert.equal((await invoke('SET', key, 'other', 'NX')).reply, ':-1\r\n')
    assert.equal((await invoke('NONSENSE', key)).reply, '-ERR unknown command\r\n')
    assert.equal((await invoke('get', key)).reply, '$5\r\nvalue\r\n')

    // A notification comes to the topic of the client, which never subscribed to it.
    assert.equal((await invoke('KEYNOTIFY', key)).reply, '+OK\r\n')
    assert.equal((await invoke('DEL', key)).reply, ':1\r\n')
    assert.equal(client.notifications.length, 1, 'the notification of a change comes before its reply')
    const [changed] = client.notifications
    assert.equal(text(changed), '*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n')
    assert.equal(changed.topic, `clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/${base16(client.options.clientId)}/command/notify/${base16(key)}`)
    assert.equal(changed.qos, 1)
    assert.match(changed.properties.userProperties.__ts, /^\d+:\d+:.+$/)
  })
})

// caller subscribes to a response topic, with No Local as the Go SDK does, and
// returns a function that sends one command and waits for its response.
async function caller(client) {
  const responses = `clients/${client.options.clientId}/response`
  await client.subscribeAsync(responses, { qos: 1, nl: true })
  client.notifications = []
  return async (...args) => {
    const correlationData = randomBytes(16)
    const payload = `*${args.length}\r\n` + args.map((a) => `$${Buffer.byteLength(a)}\r\n${a}\r\n`).join('')
    await client.publishAsync('statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke', payload, {
      qos: 1,
      properties: { responseTopic: responses, correlationData, userProperties: { __ts: `${Date.now()}:0:mqttjs` } },
    })
    for (;;) {
      const [packet] = await take(client)
      if (packet.topic !== responses) {
        client.notifications.push(packet)
        continue
      }
      assert.deepEqual(packet.properties.correlationData, correlationData)
      return { reply: text(packet), properties: packet.properties, user: packet.properties.userProperties }
    }
  }
}
