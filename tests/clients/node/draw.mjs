// Draws ids with node-redis and ioredis: draw.mjs NAME HOST PORT, where NAME is an alias of package.json.
// Prints one `ok NAME VERSION PROTO` line a protocol.
import { readFileSync } from 'node:fs'
import process from 'node:process'

const COUNT = 1000
const [name, host, port] = process.argv.slice(2)
const library = await import(name)
const version = JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version

// One shape for both libraries: ask once, ask many in a pipeline, ask many in MULTI.
async function nodeRedis(options) {
  const client = library.createClient({ socket: { host, port: Number(port) }, ...options })
  client.on('error', () => {}) // the failing command says it, too
  await client.connect()
  const multi = (command, tag) => {
    const multi = client.multi()
    for (let i = 0; i < COUNT; i++) command === 'INCR' ? multi.incr(tag) : multi.addCommand([command, tag])
    return multi
  }
  return {
    one: (command, tag) => (command === 'INCR' ? client.incr(tag) : client.sendCommand([command, tag])),
    pipelined: (command, tag) => multi(command, tag).execAsPipeline(),
    multi: (command, tag) => multi(command, tag).exec(),
    raw: (...args) => client.sendCommand(args),
    close: () => (client.close ? client.close() : client.quit()),
  }
}

function ioredis(options) {
  const client = new library.Redis({ host, port: Number(port), ...options })
  const fill = async (batch, command, tag) => {
    for (let i = 0; i < COUNT; i++) command === 'INCR' ? batch.incr(tag) : batch.call(command, tag)
    return (await batch.exec()).map(([error, id]) => {
      if (error) throw error
      return id
    })
  }
  return {
    one: (command, tag) => (command === 'INCR' ? client.incr(tag) : client.call(command, tag)),
    pipelined: (command, tag) => fill(client.pipeline(), command, tag),
    multi: (command, tag) => fill(client.multi(), command, tag),
    raw: (...args) => client.call(...args),
    close: () => client.quit(),
  }
}

const newer = { redis6: 'RESP', ioredis6: 'protocol' }[name] // the option that picks the protocol, where there is one
const rows = [['default', {}]]
if (newer) rows.push(['resp2', { [newer]: 2 }], ['resp3', { [newer]: 3 }])

for (const [proto, options] of rows) {
  const client = name.startsWith('io') ? ioredis(options) : await nodeRedis(options)
  for (const command of ['IDGET', 'INCR']) {
    const tag = `${name}-${proto}-${command}`
    const ids = []
    for (let i = 0; i < COUNT; i++) ids.push(await client.one(command, tag))
    ids.push(...(await client.pipelined(command, tag)), ...(await client.multi(command, tag)))
    // A fresh tag of one node counts without a gap, so this is count, order and uniqueness in one.
    const wrong = ids.findIndex((id, at) => id !== at + 1)
    if (wrong !== -1 || ids.length !== 3 * COUNT) {
      throw new Error(`${name} ${proto} ${command}: ${ids.length} ids, id ${wrong + 1} is ${ids[wrong]}`)
    }
  }
  await bigIds(client, `${name}-${proto}-big`)
  await client.close()
  console.log(`ok ${name} ${version} ${proto}`)
}

// Snowflake ids exceed 2^53, where JavaScript's numbers lose digits: STR keeps them.
async function bigIds(client, tag) {
  await client.raw('IDTAG', 'CREATE', tag, 'ENGINE', 'snowflake')
  let last = 0n
  for (let i = 0; i < 10; i++) {
    const text = await client.raw('IDGET', tag, 'STR')
    if (typeof text !== 'string' || BigInt(text) <= last || BigInt(text) <= 2n ** 53n) {
      throw new Error(`${tag}: ${typeof text} ${text} after ${last}`)
    }
    last = BigInt(text)
  }
}
