"""Tasks in Django's own way; Windlass runs them."""

from __future__ import annotations

from shop.models import Order, OutOfStock
from windlass import Retry

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task

runs: list[str] = []


@task(queue_name="mail")
def confirm(order: int) -> str:
    customer = Order.objects.get(pk=order).customer
    return f"confirmed to {customer}"


@task
async def count(*numbers: int) -> int:
    return sum(numbers)


@task(takes_context=True)
def attempt(context, word: str) -> list:
    return [word, context.attempt, context.task_result.id]


@task
def fail(message: str) -> None:
    raise OutOfStock(message)


@task(queue_name="mail", backend="patient")
def flaky(key: str) -> str:
    runs.append(key)
    if len(runs) < 3:
        raise ConnectionError("not yet")
    return key


@task
def note(word: str) -> None:
    runs.append(word)


@task
def unstorable() -> object:
    return object()


@task
def again() -> None:
    raise Retry(0)
