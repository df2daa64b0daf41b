# Enqueue one job: ruby producer.rb URL QUEUE CLASS ARGUMENT...
require 'bunny'
require 'json'
require 'securerandom'

url, queue, job_class, *args = ARGV
job = {
  jid: SecureRandom.hex(12), class: job_class, args: args, queue: queue,
  retry: 25, retry_count: 0, enqueued_at: Time.now.to_f
}

connection = Bunny.new(url).start
channel = connection.create_channel
channel.confirm_select
channel.direct('jobs.direct', durable: true).publish(
  job.to_json, routing_key: queue, persistent: true, mandatory: true, content_type: 'application/json'
)
raise 'the broker did not confirm' unless channel.wait_for_confirms
connection.close
puts job[:jid]
