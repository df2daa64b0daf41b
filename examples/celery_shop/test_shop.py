"""Twenty-five ways to use Celery. Each test is one of them; its docstring is its line in the guide."""

import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID, uuid4

import pytest
import shop
from celery import chain, chord, group, signature
from celery.exceptions import ChordError, MaxRetriesExceededError, TaskRevokedError, TimeoutError
from celery.result import AsyncResult

PATIENCE = 15


def eventually(check):
    until = time.monotonic() + PATIENCE
    while not (answer := check()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)
    return answer


def test_01_delay():
    """`task.delay(...)` and `result.get(timeout=...)`"""
    assert shop.add.delay(2, b=3).get(timeout=PATIENCE) == 5


def test_02_call():
    """A task called as a function: `task(...)`"""
    assert shop.add(2, 3) == 5
    assert shop.charge.run.__name__ == "charge"
    assert shop.shared("word") == "word of shop.shared"


def test_03_apply_async():
    """`apply_async(args, kwargs, task_id=..., headers=...)`, `bind=True` and `self.request`"""
    own = str(uuid4())
    sent = shop.describe.apply_async([7], {"gift": True}, task_id=own, headers={"tenant": "acme"})
    assert sent.id == own
    assert sent.get(timeout=PATIENCE) == {
        "id": own,
        "task": "shop.describe",
        "args": [7],
        "kwargs": {"gift": True},
        "retries": 0,
        "queue": "celery",
        "tenant": "acme",
    }


def test_04_countdown_and_eta():
    """`countdown=` and `eta=`"""
    start = time.monotonic()
    soon = shop.add.apply_async((1, 1), countdown=1.5)
    later = shop.add.apply_async((2, 2), eta=datetime.now(UTC) + timedelta(seconds=1.6))
    assert soon.state == later.state == "PENDING"
    assert [soon.get(timeout=PATIENCE), later.get(timeout=PATIENCE)] == [2, 4]
    assert time.monotonic() - start > 1.4


def test_05_expires():
    """`expires=`: an expired task does not run"""
    late = shop.add.apply_async((1, 1), countdown=1, expires=0.2)
    with pytest.raises(TaskRevokedError):
        late.get(timeout=PATIENCE)
    assert late.state == "REVOKED"


def test_06_queue():
    """`queue=`, set per call"""
    assert shop.describe.apply_async((1,), queue="urgent").get(timeout=PATIENCE)["queue"] == "urgent"


def test_07_routes():
    """`task_routes`, with patterns; `acks_late`, `rate_limit` and time limits of a task"""
    assert shop.send_mail.delay("ada").get(timeout=PATIENCE) == "sent to ada"
    assert shop.report.delay().get(timeout=PATIENCE) == "report"


def test_08_retry():
    """`raise self.retry(exc=...)`, `max_retries`, `default_retry_delay`"""
    assert shop.charge.delay(7, failures=2).get(timeout=PATIENCE) == "charged 7 after 2 retries"
    with pytest.raises(shop.OutOfStock, match="order 8"):
        shop.charge.delay(8, failures=9).get(timeout=PATIENCE)


def test_09_retries_are_spent():
    """`MaxRetriesExceededError`"""
    with pytest.raises(MaxRetriesExceededError):
        shop.give_up.delay().get(timeout=PATIENCE)


def test_10_autoretry():
    """`autoretry_for`, `dont_autoretry_for`, `retry_backoff`, `retry_jitter`"""
    good, bad = shop.fetch.delay(1), shop.fetch.delay(9)
    assert good.get(timeout=PATIENCE) == 1
    with pytest.raises(ConnectionError, match="no answer at try 1"):
        bad.get(timeout=PATIENCE)


def test_11_errors():
    """The caller gets errors as their original class; `propagate=False`, `traceback`, `failed()`"""
    result = shop.divide.delay(1, 0)
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        result.get(timeout=PATIENCE)
    assert isinstance(result.get(propagate=False), ZeroDivisionError)
    assert (result.state, result.failed(), result.successful()) == ("FAILURE", True, False)
    assert "ZeroDivisionError" in result.traceback
    with pytest.raises(shop.OutOfStock, match="no more"):
        shop.fail.delay("no more").get(timeout=PATIENCE)


def test_12_async_result():
    """`AsyncResult(id)`: `state`, `ready()`, `successful()`, `result`"""
    sent = shop.add.delay(4, 5)
    sent.get(timeout=PATIENCE)
    found = AsyncResult(sent.id, app=shop.app)
    assert (found.state, found.status, found.ready(), found.successful()) == (
        "SUCCESS",
        "SUCCESS",
        True,
        True,
    )
    assert found.result == 9
    assert found == sent
    assert shop.app.AsyncResult("no-such-task").state == "PENDING"


def test_13_timeout():
    """`TimeoutError`: the caller stops waiting, the task continues"""
    running = shop.convert.delay(3)
    with pytest.raises(TimeoutError):
        running.get(timeout=0.2)
    shop.release.set()
    assert running.get(timeout=PATIENCE) == 3


def test_14_progress():
    """`self.update_state(state=..., meta=...)` and `result.info`"""
    running = shop.convert.delay(4)
    eventually(lambda: running.state == "PROGRESS")
    assert running.info == {"done": 1, "of": 4}
    assert not running.ready()
    shop.release.set()
    assert running.get(timeout=PATIENCE) == 4


def test_15_revoke():
    """`result.revoke()` and `app.control.revoke(id)`"""
    first = shop.add.apply_async((1, 1), countdown=2.5)
    second = shop.add.apply_async((2, 2), countdown=2.5)
    first.revoke()
    shop.app.control.revoke(second.id)
    for one in (first, second):
        with pytest.raises(TaskRevokedError):
            one.get(timeout=PATIENCE)
    assert not [event for event in shop.seen if event[0] == "prerun"]


def test_16_forget():
    """`result.forget()`"""
    result = shop.add.delay(1, 1)
    assert result.get(timeout=PATIENCE) == 2
    result.forget()
    assert AsyncResult(result.id, app=shop.app).state == "PENDING"


def test_17_without_result():
    """`ignore_result=True`, and `raise Ignore()`"""
    assert shop.note.delay("hello").get(timeout=PATIENCE) is None
    skipped = shop.skip.delay()
    eventually(lambda: ("note", "hello") in shop.seen and ("skip",) in shop.seen)
    assert not skipped.successful()
    assert not skipped.failed()


def test_18_signatures():
    """`signature`, `s`, `si`, partial arguments, `clone`, `set`"""
    assert shop.add.s(2).delay(40).get(timeout=PATIENCE) == 42
    assert signature("shop.add", args=(1, 2), app=shop.app).apply_async().get(timeout=PATIENCE) == 3
    marked = shop.describe.s(1).set(queue="urgent").clone(kwargs={"gift": True})
    answer = marked.delay().get(timeout=PATIENCE)
    assert (answer["queue"], answer["kwargs"]) == ("urgent", {"gift": True})


def test_19_chain():
    """`chain` and `|`: each task gets the previous result; `si` does not; `result.parent`"""
    result = chain(shop.add.s(1, 2), shop.multiply.s(10), shop.add.s(5)).apply_async()
    assert result.get(timeout=PATIENCE) == 35
    assert result.parent.get(timeout=PATIENCE) == 30
    piped = shop.add.s(1, 1) | shop.add.si(3, 4) | shop.multiply.s(2)
    assert piped.delay().get(timeout=PATIENCE) == 14


def test_20_chain_that_fails():
    """A chain that fails: its last result raises the error"""
    result = chain(shop.add.s(1, 2), shop.divide.s(0), shop.multiply.s(2)).apply_async()
    with pytest.raises(ZeroDivisionError):
        result.get(timeout=PATIENCE)


def test_21_group():
    """`group`: results in order, `completed_count()`, `successful()`"""
    result = group(shop.multiply.s(n, n) for n in range(5)).apply_async()
    assert result.get(timeout=PATIENCE) == [0, 1, 4, 9, 16]
    assert (result.successful(), result.completed_count(), len(result)) == (True, 5, 5)
    assert [one.get() for one in result] == [0, 1, 4, 9, 16]


def test_22_chord():
    """`chord`, and a group inside a chain; `ChordError` when the header fails"""
    assert chord([shop.add.s(n, n) for n in range(4)])(shop.total.s()).get(timeout=PATIENCE) == 12
    mixed = chain(shop.add.s(1, 1), group(shop.add.s(1), shop.multiply.s(10)), shop.total.s())
    assert mixed.delay().get(timeout=PATIENCE) == 23
    broken = chord([shop.add.s(1, 1), shop.divide.s(1, 0)], shop.total.s()).delay()
    assert isinstance(broken.get(timeout=PATIENCE, propagate=False), ChordError)


def test_23_callbacks():
    """`link` and `link_error`"""
    shop.add.apply_async((1, 2), link=shop.add.s(10))
    eventually(lambda: ("success", 13) in shop.seen)
    bad = shop.fail.apply_async(("gone",), link_error=shop.failed.s())
    eventually(lambda: ("failed", bad.id, "OutOfStock", "gone") in shop.seen)


def test_24_the_app_around_tasks():
    """`send_task`, `shared_task`, `base=` classes with hooks, signals, beat's intervals and `crontab`"""
    sent = shop.app.send_task("shop.add", args=[20], kwargs={"b": 22})
    assert sent.get(timeout=PATIENCE) == 42
    eventually(lambda: ("postrun", sent.id, 42, "SUCCESS") in shop.seen)
    assert ("prerun", sent.id, (20,)) in shop.seen
    wrong = shop.divide.delay(1, 0)
    eventually(lambda: ("failure", wrong.id, "ZeroDivisionError") in shop.seen)
    assert shop.shared.delay("word").get(timeout=PATIENCE) == "word of shop.shared"
    assert shop.audited.delay(True).get(timeout=PATIENCE) == "good"
    with pytest.raises(shop.OutOfStock):
        shop.audited.delay(False).get(timeout=PATIENCE)
    eventually(
        lambda: ("audit", "success", "good") in shop.seen and ("audit", "failure", "audited") in shop.seen
    )
    assert shop.beaten.wait(PATIENCE), "beat sent nothing"


def test_25_eager_and_types():
    """`task_always_eager`, `apply()`; dates, decimals and UUIDs as arguments and results"""
    for value in (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), Decimal("1.10"), UUID(int=7)):
        assert shop.echo.delay(value).get(timeout=PATIENCE) == [type(value).__name__, value]
    assert shop.charge.apply((9,), {"failures": 2}).get() == "charged 9 after 2 retries"
    shop.app.conf.task_always_eager = True
    try:
        assert shop.add.delay(1, 2).get() == 3
        assert chain(shop.add.s(1, 2), shop.multiply.s(2)).apply_async().get() == 6
        assert shop.fail.delay("here").state == "FAILURE"
    finally:
        shop.app.conf.task_always_eager = False
