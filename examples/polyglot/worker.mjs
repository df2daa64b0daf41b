// Work on one queue: node worker.mjs URL QUEUE COUNT
import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import amqp from 'amqplib';

const [url, queue, count] = process.argv.slice(2);
const identity = `${hostname()}:${process.pid}:${randomBytes(4).toString('hex')}`;
const options = { persistent: true, mandatory: true, contentType: 'application/json' };
const now = () => Date.now() / 1000;

const handlers = {
  Greet: (name) => console.log(`hello ${name}`),
  Fail: () => { throw new Error('this job always fails'); },
};

// Where a failed job goes, and what is told about it there.
function nextStep(job, error) {
  const tried = job.retry_count ?? 0;
  const told = { jid: job.jid, error_message: error.message, error_class: error.name, job };
  if (tried >= (job.retry ?? 25)) {
    return ['dead_jobs', { type: 'dead_job', died_at: now(), retry_count: tried, ...told }];
  }
  const wait = tried ** 4 + 15 + Math.floor(Math.random() * 30 * (tried + 1));
  return ['retries', { type: 'retry', retry_at: now() + wait, failed_at: now(), retry_count: tried + 1, ...told }];
}

const connection = await amqp.connect(url);
const channel = await connection.createConfirmChannel();
// While a broker starts, it has no streams yet. It returns the message and confirms it: keep the job then.
channel.on('return', ({ fields }) => { throw new Error(`no queue takes ${fields.routingKey}`); });
const send = (stream, body) => channel.sendToQueue(stream, Buffer.from(JSON.stringify(body)), options);
let busy = 0;

function beat() {
  send('heartbeats', {
    type: 'heartbeat', identity, hostname: hostname(), pid: process.pid, tag: 'polyglot', concurrency: 1, busy,
    beat: now(), rss_kb: Math.round(process.memoryUsage().rss / 1024), queues: [queue], version: '1.0.0',
  });
}

async function run(job) {
  const started = Date.now();
  let status = 'success';
  try {
    if (!(job.class in handlers)) throw new Error(`unknown class ${job.class}`);
    await handlers[job.class](...job.args);
  } catch (error) {
    status = 'failed';
    send(...nextStep(job, error));
  }
  send('job_metrics', {
    type: 'job_metric', timestamp: now(), jid: job.jid, job_class: job.class, queue,
    duration_ms: Date.now() - started, status, worker_identity: identity,
  });
  await channel.waitForConfirms();
}

await channel.prefetch(1);
beat();
const timer = setInterval(beat, 10_000);
let left = Number(count);
await channel.consume(`queue.${queue}`, async (message) => {
  busy = 1;
  await run(JSON.parse(message.content.toString()));
  channel.ack(message);
  busy = 0;
  left -= 1;
  if (left === 0) {
    clearInterval(timer);
    await channel.close(); // sends what is left, the acknowledgement too
    await connection.close();
  }
});
