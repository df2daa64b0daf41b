// Enqueue one job: producer URL QUEUE CLASS ARGUMENT...
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	url, queue, class, args := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	id := make([]byte, 16)
	_, err := rand.Read(id)
	check(err)
	body, err := json.Marshal(map[string]interface{}{
		"jid": hex.EncodeToString(id), "class": class, "args": args, "queue": queue,
		"retry": 25, "retry_count": 0, "enqueued_at": float64(time.Now().UnixMilli()) / 1000,
	})
	check(err)

	connection, err := amqp.Dial(url)
	check(err)
	defer connection.Close()
	channel, err := connection.Channel()
	check(err)
	check(channel.Confirm(false))
	confirms := channel.NotifyPublish(make(chan amqp.Confirmation, 1))
	check(channel.PublishWithContext(context.Background(), "jobs.direct", queue, true, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent, ContentType: "application/json", Body: body,
	}))
	if confirmed := <-confirms; !confirmed.Ack {
		log.Fatal("the broker did not take the job")
	}
	fmt.Println(hex.EncodeToString(id))
}
