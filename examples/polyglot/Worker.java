// Work on one queue: java Worker.java URL QUEUE COUNT
import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.MessageProperties;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

public class Worker {
    interface Handler { void run(List<String> args) throws Exception; }

    static final Gson GSON = new Gson();
    static final Map<String, Handler> HANDLERS = Map.of(
        "Greet", args -> System.out.println("hello " + args.get(0)),
        "Fail", args -> { throw new IllegalStateException("this job always fails"); });

    final Channel channel;
    final String queue;
    final String hostname;
    final String identity;
    // While a broker starts, it has no streams yet. It returns the message and confirms it: keep the job then.
    volatile boolean returned;

    Worker(Channel channel, String queue) throws Exception {
        this.channel = channel;
        this.queue = queue;
        channel.addReturnListener((code, text, exchange, key, properties, body) -> returned = true);
        hostname = InetAddress.getLocalHost().getHostName();
        identity = String.format("%s:%d:%08x", hostname, ProcessHandle.current().pid(),
            ThreadLocalRandom.current().nextInt());
    }

    static double now() { return System.currentTimeMillis() / 1000.0; }

    static JsonObject object(Object... pairs) {
        JsonObject made = new JsonObject();
        for (int n = 0; n < pairs.length; n += 2) made.add((String) pairs[n], GSON.toJsonTree(pairs[n + 1]));
        return made;
    }

    synchronized void send(String stream, JsonObject body) throws Exception {
        channel.basicPublish("", stream, true, MessageProperties.PERSISTENT_TEXT_PLAIN,
            GSON.toJson(body).getBytes(StandardCharsets.UTF_8));
        channel.waitForConfirmsOrDie(10_000);
        if (returned) throw new IllegalStateException("no queue takes " + stream);
    }

    void beat(int busy) throws Exception {
        send("heartbeats", object("type", "heartbeat", "identity", identity, "hostname", hostname,
            "pid", ProcessHandle.current().pid(), "tag", "polyglot", "concurrency", 1, "busy", busy,
            "beat", now(), "queues", List.of(queue), "version", "1.0.0"));
    }

    /** Where a failed job goes next. It goes along as it came, with fields we do not know. */
    void failed(JsonObject job, Exception error) throws Exception {
        int tried = job.has("retry_count") ? job.get("retry_count").getAsInt() : 0;
        int most = job.has("retry") ? job.get("retry").getAsInt() : 25;
        JsonObject told = object("jid", job.get("jid").getAsString(), "error_message", error.getMessage(),
            "error_class", error.getClass().getSimpleName(), "retry_count", tried < most ? tried + 1 : tried);
        told.add("job", job);
        if (tried >= most) {
            told.addProperty("type", "dead_job");
            told.addProperty("died_at", now());
            send("dead_jobs", told);
            return;
        }
        double wait = Math.pow(tried, 4) + 15 + ThreadLocalRandom.current().nextInt(30 * (tried + 1));
        told.addProperty("type", "retry");
        told.addProperty("failed_at", now());
        told.addProperty("retry_at", now() + wait);
        send("retries", told);
    }

    void run(JsonObject job) throws Exception {
        long started = System.nanoTime();
        String status = "success";
        String name = job.get("class").getAsString();
        try {
            Handler handler = HANDLERS.get(name);
            if (handler == null) throw new IllegalArgumentException("unknown class " + name);
            List<String> args = new ArrayList<>();
            for (JsonElement one : job.getAsJsonArray("args")) args.add(one.getAsString());
            handler.run(args);
        } catch (Exception error) {
            status = "failed";
            failed(job, error);
        }
        send("job_metrics", object("type", "job_metric", "timestamp", now(), "jid", job.get("jid").getAsString(),
            "job_class", name, "queue", queue, "duration_ms", (System.nanoTime() - started) / 1_000_000,
            "status", status, "worker_identity", identity));
    }

    public static void main(String[] words) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(words[0]);
        CountDownLatch left = new CountDownLatch(Integer.parseInt(words[2]));
        try (Connection connection = factory.newConnection(); Channel channel = connection.createChannel()) {
            channel.confirmSelect();
            channel.basicQos(1);
            Worker worker = new Worker(channel, words[1]);
            worker.beat(0);
            channel.basicConsume("queue." + words[1], false, new DefaultConsumer(channel) {
                @Override
                public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
                    try {
                        worker.run(GSON.fromJson(new String(body, StandardCharsets.UTF_8), JsonObject.class));
                        channel.basicAck(envelope.getDeliveryTag(), false);
                        left.countDown();
                    } catch (Exception error) {
                        error.printStackTrace();
                        System.exit(1);
                    }
                }
            });
            while (!left.await(10, TimeUnit.SECONDS)) worker.beat(0);
        }
    }
}
