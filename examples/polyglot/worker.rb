# Work on one queue: ruby worker.rb URL QUEUE COUNT
require 'bunny'
require 'json'
require 'securerandom'
require 'socket'

URL, QUEUE, COUNT = ARGV
IDENTITY = "#{Socket.gethostname}:#{Process.pid}:#{SecureRandom.hex(4)}"
HANDLERS = {
  'Greet' => ->(name) { puts "hello #{name}" },
  'Fail' => ->(*) { raise 'this job always fails' }
}

# Where a failed job goes, and what is told about it there.
def next_step(job, error)
  tried = job['retry_count'] || 0
  told = { jid: job['jid'], error_message: error.message, error_class: error.class.name, job: job }
  if tried >= (job['retry'] || 25)
    ['dead_jobs', { type: 'dead_job', died_at: Time.now.to_f, retry_count: tried,
                    backtrace: (error.backtrace || []).join("\n"), **told }]
  else
    wait = tried**4 + 15 + rand(30 * (tried + 1))
    ['retries', { type: 'retry', retry_at: Time.now.to_f + wait, failed_at: Time.now.to_f,
                  retry_count: tried + 1, **told }]
  end
end

def send_to(channel, stream, body)
  channel.default_exchange.publish(
    body.to_json, routing_key: stream, persistent: true, mandatory: true, content_type: 'application/json'
  )
end

def beat(channel, busy)
  send_to(channel, 'heartbeats',
          type: 'heartbeat', identity: IDENTITY, hostname: Socket.gethostname, pid: Process.pid, tag: 'polyglot',
          concurrency: 1, busy: busy, beat: Time.now.to_f, queues: [QUEUE], version: '1.0.0')
end

def run(channel, job)
  started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  status = 'success'
  begin
    HANDLERS.fetch(job['class']).call(*job['args'])
  rescue StandardError => e
    status = 'failed'
    send_to(channel, *next_step(job, e))
  end
  spent = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
  send_to(channel, 'job_metrics',
          type: 'job_metric', timestamp: Time.now.to_f, jid: job['jid'], job_class: job['class'], queue: QUEUE,
          duration_ms: (spent * 1000).round, status: status, worker_identity: IDENTITY)
  raise 'the broker did not confirm' unless channel.wait_for_confirms
end

$stdout.sync = true
connection = Bunny.new(URL).start
channel = connection.create_channel
channel.confirm_select
channel.prefetch(1)
# While a broker starts, it has no streams yet. It returns the message and confirms it: keep the job then.
channel.default_exchange.on_return do |returned, _properties, _body|
  warn "no queue takes #{returned.routing_key}"
  exit!(1)
end
beat(channel, 0)
heart = connection.create_channel # a channel belongs to one thread
Thread.new { loop { sleep 10; beat(heart, 1) } }

done = Queue.new
left = COUNT.to_i
jobs = Bunny::Queue.new(channel, "queue.#{QUEUE}", no_declare: true)
jobs.subscribe(manual_ack: true) do |delivery, _properties, body|
  run(channel, JSON.parse(body))
  channel.ack(delivery.delivery_tag)
  left -= 1
  done << true if left.zero?
end
done.pop
connection.close
