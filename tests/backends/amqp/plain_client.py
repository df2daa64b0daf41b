"""A producer as the protocol's description shows it, with pika alone: it knows nothing of Windlass."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pika


class JobClient:
    """Enqueues and schedules jobs."""

    def __init__(self, amqp_url: str) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
        self.channel = self.connection.channel()

    def enqueue(self, job_class: str, args: list[Any], queue: str = "default", retry: int = 25) -> str:
        job = {
            "jid": uuid.uuid4().hex,
            "class": job_class,
            "args": args,
            "queue": queue,
            "retry": retry,
            "retry_count": 0,
            "enqueued_at": time.time(),
        }

        self.channel.basic_publish(
            exchange="jobs.direct",
            routing_key=queue,
            body=json.dumps(job),
            properties=pika.BasicProperties(delivery_mode=2),
        )

        return str(job["jid"])

    def schedule(self, job_class: str, args: list[Any], scheduled_at: float, queue: str = "default") -> str:
        scheduled_job = {
            "type": "scheduled_job",
            "jid": uuid.uuid4().hex,
            "scheduled_at": scheduled_at,
            "job": {
                "class": job_class,
                "args": args,
                "queue": queue,
                "retry": 25,
                "enqueued_at": time.time(),
            },
        }

        self.channel.basic_publish(
            exchange="",
            routing_key="scheduled_jobs",
            body=json.dumps(scheduled_job),
            properties=pika.BasicProperties(delivery_mode=2),
        )
        return str(scheduled_job["jid"])
