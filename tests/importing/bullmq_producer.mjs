// node bullmq_producer.mjs PORT DB COUNT: jobs of every kind, through BullMQ itself.
import { FlowProducer, Queue } from "bullmq";

const [port, db, count] = process.argv.slice(2).map(Number);
const connection = { host: "127.0.0.1", port, db };
const queue = new Queue("mail", { connection });

const many = Array.from({ length: count }, (_, n) => ({ name: "send", data: { n } }));
for (let at = 0; at < many.length; at += 1000) await queue.addBulk(many.slice(at, at + 1000));

const other = new Queue("other", { connection });
await other.add("later", { to: "bob" }, { delay: 3_600_000, attempts: 4, backoff: { type: "exponential", delay: 1500 } });
await other.add("urgent", [1, 2], { priority: 7, jobId: "own-id" });
await other.add("single", "text", { backoff: 500, attempts: 2 });
await other.upsertJobScheduler("tick", { every: 60_000 }, { name: "tick" });
const flows = new FlowProducer({ connection });
await flows.add({ name: "parent", queueName: "other", children: [{ name: "child", queueName: "other" }] });

await Promise.all([queue.close(), other.close(), flows.close()]);
