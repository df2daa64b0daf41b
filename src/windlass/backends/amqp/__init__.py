"""AMQP 0-9-1 brokers (RabbitMQ, LavinMQ): jobs for every language."""

from __future__ import annotations

from windlass.backends.amqp.backend import AmqpBackend, from_url

__all__ = ["AmqpBackend", "from_url"]
