// BullMQ: node bullmq_peer.mjs VERB COUNT TEXT, or node bullmq_peer.mjs work CONCURRENCY.
import { openSync, writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { Queue, QueueEvents, Worker } from 'bullmq';

const url = new URL(process.env.BENCH_URL);
const connection = { host: url.hostname, port: Number(url.port) };
const [verb, amount, text] = process.argv.slice(2);
const count = Number(amount);

function work() {
  const file = openSync(process.env.BENCH_STAMPS, 'a');
  const stamp = (value) => {
    const bytes = Buffer.alloc(8);
    bytes.writeBigInt64LE(value);
    writeSync(file, bytes);
  };
  const worker = new Worker('bench', async (job) => {
    const now = process.hrtime.bigint();
    if (job.name === 'noop') stamp(now);
    else if (job.name === 'late') stamp(now - BigInt(job.data.asked_ns));
    else return job.data.number;
  }, { connection, concurrency: count });
  process.on('SIGINT', async () => {
    await worker.close(true);
    process.exit(0);
  });
}

async function rate(step) {
  const started = process.hrtime.bigint();
  await step();
  return count / (Number(process.hrtime.bigint() - started) / 1e9);
}

const verbs = {
  one: (queue) => rate(async () => {
    for (let n = 0; n < count; n++) await queue.add('noop', { text });
  }),
  bulk: (queue) => rate(async () => {
    for (let n = 0; n < count; n += 1000) {
      const size = Math.min(1000, count - n);
      await queue.addBulk(Array.from({ length: size }, () => ({ name: 'noop', data: { text } })));
    }
  }),
  late: async (queue) => {
    for (let n = 0; n < count; n++) {
      await sleep(10);
      await queue.add('late', { asked_ns: process.hrtime.bigint().toString() });
    }
    return 0;
  },
  call: async (queue) => {
    const events = new QueueEvents('bench', { connection });
    await events.waitUntilReady();
    const found = await rate(async () => {
      for (let n = 0; n < count; n++) {
        const job = await queue.add('echo', { number: n });
        if (await job.waitUntilFinished(events) !== n) throw new Error('a wrong answer');
      }
    });
    await events.close();
    return found;
  },
};

if (verb === 'work') {
  work();
} else {
  const queue = new Queue('bench', { connection });
  await queue.waitUntilReady();
  const found = await verbs[verb](queue);
  await queue.close();
  console.log(JSON.stringify({ rate: found }));
}
