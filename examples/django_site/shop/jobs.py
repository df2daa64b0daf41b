"""A Windlass app beside Django's own tasks: schedules, flows, limits and retries are here."""

from __future__ import annotations

from windlass import Windlass

app = Windlass(name="shop")


@app.task(queue="orders", max_attempts=5)
def ship(order: int) -> str:
    from shop.models import Order

    Order.objects.filter(pk=order).update(state="shipped")
    return "shipped"
