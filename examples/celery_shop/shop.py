"""A small shop whose background work is written with Celery.

The broker is named by $SHOP_BROKER. With ``from windlass.compat.celery`` instead of ``from celery`` the same
file runs on Windlass, and $SHOP_BROKER may name any of its stores.
"""

import os
import threading

from celery import Celery, Task, shared_task
from celery.exceptions import Ignore
from celery.schedules import crontab
from celery.signals import task_failure, task_postrun, task_prerun, task_success
from celery.utils.log import get_task_logger

log = get_task_logger(__name__)
app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ["SHOP_BROKER"])
app.conf.update(
    task_routes={"shop.mail.*": {"queue": "mail"}, "shop.report": "reports"},
    broker_connection_retry_on_startup=True,
    result_expires=600,
    timezone="Europe/Berlin",
    beat_schedule={
        "heartbeat": {"task": "shop.heartbeat", "schedule": 1.0, "args": ("tick",)},
        "nightly": {"task": "shop.report", "schedule": crontab(hour=3, minute=30, day_of_week="mon-fri")},
    },
)

#: What tasks leave behind for the tests, which run in the same process as the worker.
seen: list[tuple] = []
release = threading.Event()
beaten = threading.Event()


class OutOfStock(Exception):
    """An error of the application's own."""


@app.task(name="shop.add")
def add(a, b):
    return a + b


@app.task(name="shop.multiply")
def multiply(a, b):
    return a * b


@app.task(name="shop.total")
def total(numbers):
    return sum(numbers)


@app.task(name="shop.describe", bind=True)
def describe(self, order, gift=False):
    request = self.request
    return {
        "id": request.id,
        "task": request.task,
        "args": list(request.args),
        "kwargs": request.kwargs,
        "retries": request.retries,
        "queue": request.delivery_info["routing_key"],
        "tenant": request.get("tenant"),
    }


@app.task(name="shop.mail.send")
def send_mail(to):
    return f"sent to {to}"


@app.task(name="shop.charge", bind=True, max_retries=3, default_retry_delay=0.05)
def charge(self, order, failures):
    if self.request.retries < failures:
        raise self.retry(exc=OutOfStock(f"order {order}"))
    return f"charged {order} after {self.request.retries} retries"


@app.task(name="shop.give_up", bind=True, max_retries=1)
def give_up(self):
    self.retry(countdown=0.05)


@app.task(
    name="shop.fetch",
    bind=True,
    autoretry_for=(ConnectionError,),
    dont_autoretry_for=(ConnectionRefusedError,),
    max_retries=1,
    retry_backoff=True,
    retry_jitter=False,
)
def fetch(self, failures):
    if self.request.retries < failures:
        raise ConnectionError(f"no answer at try {self.request.retries}")
    return self.request.retries


@app.task(name="shop.fail", throws=(OutOfStock,))
def fail(message):
    raise OutOfStock(message)


@app.task(name="shop.divide")
def divide(a, b):
    return a / b


@app.task(name="shop.convert", bind=True)
def convert(self, parts):
    self.update_state(state="PROGRESS", meta={"done": 1, "of": parts})
    release.wait(20)
    return parts


@app.task(name="shop.log", ignore_result=True)
def note(text):
    seen.append(("note", text))
    return "nothing that is kept"


@app.task(name="shop.skip")
def skip():
    seen.append(("skip",))
    raise Ignore()


@app.task(name="shop.echo")
def echo(value):
    return [type(value).__name__, value]


@app.task(name="shop.report", acks_late=True, rate_limit="100/s", time_limit=30, soft_time_limit=20)
def report():
    return "report"


@app.task(name="shop.heartbeat")
def heartbeat(word):
    beaten.set()
    return word


@app.task(name="shop.failed")
def failed(request, exc, traceback):
    seen.append(("failed", request.id, type(exc).__name__, str(exc)))


@shared_task(name="shop.shared", bind=True)
def shared(self, word):
    log.info("shared %s", word)
    return f"{word} of {self.name}"


class Audited(Task):
    """Tasks whose ends are written down."""

    def on_success(self, retval, task_id, args, kwargs):
        seen.append(("audit", "success", retval))

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        seen.append(("audit", "failure", str(exc)))


@app.task(name="shop.audited", base=Audited)
def audited(good):
    if not good:
        raise OutOfStock("audited")
    return "good"


@task_prerun.connect(sender=add)
def before(sender=None, task_id=None, task=None, args=None, kwargs=None, **_):
    seen.append(("prerun", task_id, tuple(args)))


@task_postrun.connect(sender=add)
def after(sender=None, task_id=None, task=None, retval=None, state=None, **_):
    seen.append(("postrun", task_id, retval, state))


@task_success.connect(sender=add)
def succeeded(sender=None, result=None, **_):
    seen.append(("success", result))


@task_failure.connect(sender=divide)
def went_wrong(sender=None, task_id=None, exception=None, **_):
    seen.append(("failure", task_id, type(exception).__name__))
