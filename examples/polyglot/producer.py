"""Enqueue one job: ``python producer.py URL QUEUE CLASS ARGUMENT...``"""

import json
import sys
import time
import uuid

import pika


def main(url: str, queue: str, job_class: str, *args: str) -> None:
    job = {
        "jid": uuid.uuid4().hex,
        "class": job_class,
        "args": args,
        "queue": queue,
        "retry": 25,
        "retry_count": 0,
        "enqueued_at": time.time(),
    }
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2, content_type="application/json")
    channel.basic_publish("jobs.direct", queue, json.dumps(job), properties, mandatory=True)
    connection.close()
    print(job["jid"])


if __name__ == "__main__":
    main(*sys.argv[1:])
