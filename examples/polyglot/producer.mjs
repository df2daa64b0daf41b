// Enqueue one job: node producer.mjs URL QUEUE CLASS ARGUMENT...
import { randomUUID } from 'node:crypto';
import amqp from 'amqplib';

const [url, queue, jobClass, ...args] = process.argv.slice(2);
const job = {
  jid: randomUUID().replace(/-/g, ''),
  class: jobClass,
  args,
  queue,
  retry: 25,
  retry_count: 0,
  enqueued_at: Date.now() / 1000,
};

const connection = await amqp.connect(url);
const channel = await connection.createConfirmChannel();
channel.on('return', () => { throw new Error(`no queue for ${queue}`); });
const options = { persistent: true, mandatory: true, contentType: 'application/json' };
channel.publish('jobs.direct', queue, Buffer.from(JSON.stringify(job)), options);
await channel.waitForConfirms();
await connection.close();
console.log(job.jid);
