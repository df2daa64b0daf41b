// Work on one queue: worker URL QUEUE COUNT
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math"
	"math/rand"
	"os"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

type fields = map[string]interface{}

type job struct {
	JID        string        `json:"jid"`
	Class      string        `json:"class"`
	Args       []interface{} `json:"args"`
	Retry      *int          `json:"retry"`
	RetryCount int           `json:"retry_count"`
}

var handlers = map[string]func([]interface{}) error{
	"Greet": func(args []interface{}) error { fmt.Println("hello", args[0]); return nil },
	"Fail":  func([]interface{}) error { return errors.New("this job always fails") },
}

type worker struct {
	channel  *amqp.Channel
	confirms chan amqp.Confirmation
	returns  chan amqp.Return
	queue    string
	hostname string
	identity string
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func now() float64 { return float64(time.Now().UnixMilli()) / 1000 }

// send publishes to a stream and waits until the broker has it.
func (w *worker) send(stream string, body fields) {
	data, err := json.Marshal(body)
	check(err)
	check(w.channel.PublishWithContext(context.Background(), "", stream, true, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent, ContentType: "application/json", Body: data,
	}))
	if confirmed := <-w.confirms; !confirmed.Ack {
		log.Fatal("the broker did not take a message for ", stream)
	}
	// While a broker starts, it has no streams yet. It returns the message and confirms it: keep the job then.
	if len(w.returns) > 0 {
		log.Fatal("no queue takes ", stream)
	}
}

func (w *worker) beat(busy int) {
	w.send("heartbeats", fields{
		"type": "heartbeat", "identity": w.identity, "hostname": w.hostname, "pid": os.Getpid(),
		"tag": "polyglot", "concurrency": 1, "busy": busy, "beat": now(), "queues": []string{w.queue},
		"version": "1.0.0",
	})
}

// failed tells where a failed job goes next. The job goes along as it came, with fields we do not know.
func (w *worker) failed(one job, raw json.RawMessage, err error) {
	most := 25
	if one.Retry != nil {
		most = *one.Retry
	}
	told := fields{
		"jid": one.JID, "error_message": err.Error(), "error_class": fmt.Sprintf("%T", err), "job": raw,
	}
	if one.RetryCount >= most {
		told["type"], told["died_at"], told["retry_count"] = "dead_job", now(), one.RetryCount
		w.send("dead_jobs", told)
		return
	}
	wait := math.Pow(float64(one.RetryCount), 4) + 15 + float64(rand.Intn(30*(one.RetryCount+1)))
	told["type"], told["failed_at"], told["retry_at"] = "retry", now(), now()+wait
	told["retry_count"] = one.RetryCount + 1
	w.send("retries", told)
}

func (w *worker) run(body []byte) {
	var one job
	check(json.Unmarshal(body, &one))
	started, status := time.Now(), "success"
	handler, known := handlers[one.Class]
	err := fmt.Errorf("unknown class %s", one.Class)
	if known {
		err = handler(one.Args)
	}
	if err != nil {
		status = "failed"
		w.failed(one, body, err)
	}
	w.send("job_metrics", fields{
		"type": "job_metric", "timestamp": now(), "jid": one.JID, "job_class": one.Class, "queue": w.queue,
		"duration_ms": time.Since(started).Milliseconds(), "status": status, "worker_identity": w.identity,
	})
}

func main() {
	url, queue := os.Args[1], os.Args[2]
	left, err := strconv.Atoi(os.Args[3])
	check(err)
	connection, err := amqp.Dial(url)
	check(err)
	defer connection.Close()
	channel, err := connection.Channel()
	check(err)
	check(channel.Confirm(false))
	check(channel.Qos(1, 0, false))
	hostname, err := os.Hostname()
	check(err)
	identity := fmt.Sprintf("%s:%d:%08x", hostname, os.Getpid(), rand.New(rand.NewSource(time.Now().UnixNano())).Uint32())
	confirms := channel.NotifyPublish(make(chan amqp.Confirmation, 1))
	returns := channel.NotifyReturn(make(chan amqp.Return, 1))
	w := &worker{channel, confirms, returns, queue, hostname, identity}
	deliveries, err := channel.Consume("queue."+queue, "", false, false, false, false, nil)
	check(err)
	w.beat(0)
	ticker := time.NewTicker(10 * time.Second)
	for left > 0 {
		select {
		case <-ticker.C:
			w.beat(0)
		case delivery := <-deliveries:
			w.run(delivery.Body)
			check(delivery.Ack(false))
			left--
		}
	}
}
