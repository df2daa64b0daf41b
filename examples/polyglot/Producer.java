// Enqueue one job: java Producer.java URL QUEUE CLASS ARGUMENT...
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.UUID;
import java.util.stream.Collectors;

public class Producer {
    static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    public static void main(String[] words) throws Exception {
        String queue = words[1];
        String jid = UUID.randomUUID().toString().replace("-", "");
        String args = Arrays.stream(words).skip(3).map(Producer::quoted).collect(Collectors.joining(","));
        String job = String.format(
            "{\"jid\":%s,\"class\":%s,\"args\":[%s],\"queue\":%s,\"retry\":25,\"retry_count\":0,\"enqueued_at\":%d.%03d}",
            quoted(jid), quoted(words[2]), args, quoted(queue),
            System.currentTimeMillis() / 1000, System.currentTimeMillis() % 1000);

        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(words[0]);
        try (Connection connection = factory.newConnection(); Channel channel = connection.createChannel()) {
            channel.confirmSelect();
            channel.basicPublish("jobs.direct", queue, true, MessageProperties.PERSISTENT_TEXT_PLAIN,
                job.getBytes(StandardCharsets.UTF_8));
            channel.waitForConfirmsOrDie(10_000);
        }
        System.out.println(jid);
    }
}
