// @platformatic/job-queue on files: node platformatic_peer.mjs DIRECTORY VERB COUNT TEXT.
// VERB add: COUNT jobs, 50 at once (it has no bulk call). VERB drain: COUNT jobs with 50 slots.
import { FileStorage, Queue } from '@platformatic/job-queue';

const [directory, verb, amount, text] = process.argv.slice(2);
const count = Number(amount);
const AT_ONCE = 50;

function open(concurrency) {
  return new Queue({ storage: new FileStorage({ basePath: directory }), concurrency });
}

async function add(queue) {
  let next = 0;
  const produce = async () => {
    while (next < count) await queue.enqueue(`job-${next++}`, { text });
  };
  await Promise.all(Array.from({ length: AT_ONCE }, produce));
}

const queue = open(AT_ONCE);
let started;
if (verb === 'add') {
  await queue.start();
  started = process.hrtime.bigint();
  await add(queue);
} else {
  let done = 0;
  const all = new Promise((resolve) => {
    queue.on('completed', () => {
      if (++done === count) resolve();
    });
  });
  queue.execute(async () => ({ ok: true }));
  started = process.hrtime.bigint();
  await queue.start();
  await all;
}
const seconds = Number(process.hrtime.bigint() - started) / 1e9;
console.log(JSON.stringify({ rate: count / seconds }));
process.exit(0);
