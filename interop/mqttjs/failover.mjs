// A publisher and a subscriber of MQTT.js that connect to any node of a cluster, while its leader
// changes. BROKER_URLS names the nodes, with commas; other variables are those of broker.test.mjs.
//
// The publisher publishes numbers at QoS 1 and 2 until standard input ends. The program prints a line
// for each hundred that were acknowledged, and ends with 0 when all of them have come: at QoS 2 once each.

import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import mqtt from 'mqtt'

const urls = process.env.BROKER_URLS.split(',').map((url) => new URL(url))
const site = process.env.BROKER_SITE
const options = (what) => ({
  protocolVersion: 5,
  clientId: `${what}-${randomUUID()}`,
  clean: false,
  properties: { sessionExpiryInterval: 3600 },
  reconnectPeriod: 100,
  connectTimeout: 10_000,
  servers: urls.map((url) => ({ host: url.hostname, port: Number(url.port), protocol: url.protocol.slice(0, -1) })),
  ...(site ? { ca: readFileSync(`${site}/ca.crt`), cert: readFileSync(`${site}/admin.crt`), key: readFileSync(`${site}/admin.key`) } : {}),
  ...(process.env.BROKER_USERNAME ? { username: process.env.BROKER_USERNAME, password: process.env.BROKER_PASSWORD } : {}),
})
const connect = (what) => {
  const client = mqtt.connect(urls[0].href, options(what))
  client.on('error', (error) => console.log(`${what}: ${error}`)) // it connects again
  client.on('connect', (connack) => {
    if (client.before && !connack.sessionPresent) fail(`${what}: the session is gone`)
    client.before = true
  })
  return client
}
const fail = (why) => {
  console.log(`FAILED ${why}`)
  process.exit(1)
}

const packetIdentifierNotFound = 0x92
const topic = `interop/failover-${randomUUID()}`
const received = [new Map(), new Map(), new Map()] // by QoS
const subscriber = connect('subscriber')
subscriber.on('message', (_, payload, packet) => {
  const n = Number(payload)
  received[packet.qos].set(n, (received[packet.qos].get(n) ?? 0) + 1)
})
await subscriber.subscribeAsync(topic, { qos: 2 })

let stopped = false
process.stdin.on('data', () => {}).on('end', () => (stopped = true))
const publisher = connect('publisher')
const acknowledged = []
for (let n = 0; !stopped; n++) {
  try {
    await publisher.publishAsync(topic, String(n), { qos: 1 + (n % 2) })
  } catch (error) {
    // A PUBREL that is sent again, because the PUBCOMP was lost with a connection, finds no packet
    // identifier: MQTT calls that no error, and MQTT.js does.
    if (n % 2 === 0 || error.code !== packetIdentifierNotFound) fail(`publishing ${n}: ${error}`)
  }
  acknowledged.push(n)
  if (n % 100 === 0) console.log(`acknowledged ${n}`)
  await new Promise((resolve) => setTimeout(resolve, 1))
}
const until = Date.now() + 60_000
const missing = () => acknowledged.filter((n) => !received[1 + (n % 2)].has(n))
while (missing().length > 0) {
  if (Date.now() > until) fail(`${missing().length} acknowledged messages did not come, for example ${missing()[0]}`)
  await new Promise((resolve) => setTimeout(resolve, 20))
}
const twice = [...received[2]].filter(([, times]) => times > 1)
if (twice.length > 0) fail(`${twice.length} messages of QoS 2 came twice, for example ${twice[0]}`)
console.log(`all ${acknowledged.length} came`)
process.exit(0)
