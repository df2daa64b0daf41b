"""``python manage.py test``: the project, its tasks of both kinds, and what django.tasks promises."""

from __future__ import annotations

import io
import json
import tempfile
from contextlib import redirect_stdout
from datetime import timedelta
from pathlib import Path

from django.core import checks
from django.core.management import call_command
from django.db import transaction
from django.test import TransactionTestCase
from django.utils import timezone

from shop import tasks
from shop.jobs import app
from shop.models import Order, OutOfStock
from windlass.contrib.django import _tasks as dt
from windlass.contrib.django import get_app


class Case(TransactionTestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        app.use_store(f"sqlite:///{Path(folder.name) / 'jobs.db'}")
        self.addCleanup(app.sync.close)
        tasks.runs.clear()

    def work(self, *options: str) -> None:
        call_command("windlass_worker", "--burst", "--log-level", "error", *options)


class TheProject(Case):
    def test_an_order_is_stored_shipped_and_confirmed(self) -> None:
        answer = self.client.post("/order", {"customer": "ada"}).json()
        self.work()
        self.assertEqual(Order.objects.get(pk=answer["order"]).state, "shipped")
        self.assertEqual(app.sync.queue("orders").get_result(answer["job"]), "shipped")
        self.assertEqual(tasks.confirm.get_result(answer["mail"]).return_value, "confirmed to ada")

    def test_an_order_that_rolls_back_ships_nothing(self) -> None:
        from shop.jobs import ship
        from windlass.contrib.django import enqueue_on_commit

        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            enqueue_on_commit(ship, 1)
            raise ZeroDivisionError
        self.assertEqual(app.sync.queue("orders").count(), 0)
        with transaction.atomic():
            job = enqueue_on_commit(ship.options(delay=60), 1)
            self.assertIsNone(app.sync.queue("orders").get_job(job))
        self.assertEqual(app.sync.queue("orders").get_job(job).state, "scheduled")

    def test_the_command_line_knows_the_store(self) -> None:
        tasks.note.enqueue("hello")
        with redirect_stdout(io.StringIO()) as out:
            call_command("windlass", "queues", "--json")
        (queue,) = json.loads(out.getvalue())
        self.assertEqual((queue["name"], queue["counts"]["waiting"]), ("default", 1))
        with self.assertRaises(SystemExit) as ended:
            call_command("windlass", "job", "default", "none")
        self.assertEqual(ended.exception.code, 1)

    def test_bad_settings_are_found_by_the_checks(self) -> None:
        self.assertEqual([found.id for found in checks.run_checks() if found.id.startswith("windlass")], [])
        with self.settings(WINDLASS={"APP": "shop.jobs:nothing"}):
            found = {found.id: found.msg for found in checks.run_checks()}
        self.assertIn("WINDLASS['APP'] must be MODULE:APP of a Windlass app", found["windlass.E001"])
        with self.settings(WINDLASS={"ULR": "memory://"}):
            found = {found.id: found.msg for found in checks.run_checks()}
        self.assertIn("URL", found["windlass.E001"])
        self.assertIs(get_app(), app)


class WhatDjangoPromises(Case):
    def test_enqueue_and_the_life_of_a_result(self) -> None:
        result = tasks.count.enqueue(1, 2, 3)
        self.assertEqual((result.status, result.attempts, result.errors), ("READY", 0, []))
        self.assertFalse(result.is_finished)
        self.assertIsNotNone(result.enqueued_at)
        with self.assertRaisesMessage(ValueError, "not finished"):
            _ = result.return_value
        self.work()
        result.refresh()
        self.assertEqual((result.status, result.return_value, result.attempts), ("SUCCESSFUL", 6, 1))
        self.assertTrue(result.is_finished)
        self.assertTrue(result.enqueued_at <= result.started_at <= result.finished_at)
        self.assertEqual(result.started_at, result.last_attempted_at)
        self.assertEqual(len(result.worker_ids), 1)

    async def test_the_async_verbs(self) -> None:
        result = await tasks.count.aenqueue(20, 22)
        same = await tasks.count.aget_result(result.id)
        self.assertEqual((same.id, same.args, same.kwargs), (result.id, [20, 22], {}))
        await result.arefresh()
        self.assertEqual(result.status, "READY")
        await app.close()

    def test_priority_and_queue(self) -> None:
        for priority, word in [(-5, "last"), (0, "second"), (90, "first")]:
            tasks.note.using(priority=priority).enqueue(word)
        self.work("--concurrency", "1")
        self.assertEqual(tasks.runs, ["first", "second", "last"])
        mail = tasks.note.using(queue_name="mail").enqueue("in the other queue")
        self.assertEqual(app.sync.queue("mail").get_job(mail.id).state, "waiting")
        self.assertEqual(tasks.note.get_result(mail.id).task.queue_name, "mail")

    def test_run_after(self) -> None:
        later = timezone.now() + timedelta(hours=1)
        result = tasks.note.using(run_after=later).enqueue("tomorrow")
        job = app.sync.queue("default").get_job(result.id)
        self.assertEqual(job.state, "scheduled")
        self.assertEqual(job.job.run_at_ms, round(later.timestamp() * 1000))
        self.work()
        result.refresh()
        self.assertEqual((result.status, tasks.runs), ("READY", []))

    def test_errors_carry_their_class_and_traceback(self) -> None:
        result = tasks.fail.enqueue("no such order")
        self.work()
        result.refresh()
        self.assertEqual((result.status, result.attempts, len(result.errors)), ("FAILED", 1, 1))
        self.assertIs(result.errors[0].exception_class, OutOfStock)
        self.assertIn("no such order", result.errors[0].traceback)
        with self.assertRaisesMessage(ValueError, "failed"):
            _ = result.return_value

    def test_retries_where_the_options_ask_for_them(self) -> None:
        with transaction.atomic():
            result = tasks.flaky.enqueue("k")
            self.assertEqual(app.sync.queue("mail").count(), 0, "it is added on commit")
        self.work()
        result.refresh()
        self.assertEqual((result.status, result.return_value, result.attempts), ("SUCCESSFUL", "k", 3))
        self.assertEqual([error.exception_class for error in result.errors], [ConnectionError] * 2)

    def test_a_task_may_take_its_context(self) -> None:
        result = tasks.attempt.enqueue("hello")
        self.work()
        result.refresh()
        self.assertEqual(result.return_value, ["hello", 1, result.id])

    def test_signals(self) -> None:
        seen: list[tuple[str, str]] = []

        def keep(name: str):
            def receiver(sender, task_result, **kwargs):
                seen.append((name, task_result.status))

            return receiver

        keepers = {name: keep(name) for name in ("task_enqueued", "task_started", "task_finished")}
        for name, receiver in keepers.items():
            getattr(dt, name).connect(receiver)
        try:
            tasks.note.enqueue("x")
            tasks.fail.enqueue("y")
            tasks.flaky.enqueue("z")
            self.work("--queues", "default", "--concurrency", "1")
            tasks.runs.clear()
            self.work("--queues", "mail", "--concurrency", "1")
        finally:
            for name, receiver in keepers.items():
                getattr(dt, name).disconnect(receiver)
        self.assertEqual(
            seen,
            [("task_enqueued", "READY")] * 3
            + [("task_started", "RUNNING"), ("task_finished", "SUCCESSFUL")]
            + [("task_started", "RUNNING"), ("task_finished", "FAILED")]
            + [("task_started", "RUNNING")] * 3  # two runs that were retried, and the last one
            + [("task_finished", "SUCCESSFUL")],
        )

    def test_a_task_that_has_failed_in_the_end_is_not_reported_as_successful(self) -> None:
        seen: list[str] = []

        def keep(sender, task_result, **kwargs):
            seen.append(task_result.status)

        dt.task_finished.connect(keep)
        try:
            results = [tasks.unstorable.enqueue(), tasks.again.enqueue()]
            self.work("--concurrency", "1")
        finally:
            dt.task_finished.disconnect(keep)
        for result in results:
            result.refresh()
        self.assertEqual(seen, ["FAILED", "FAILED"])
        self.assertEqual([result.status for result in results], seen)

    def test_what_it_can_do_is_declared(self) -> None:
        backend = dt.task_backends["default"]
        flags = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
        self.assertEqual([getattr(backend, flag) for flag in flags], [True] * 4)

    def test_what_cannot_run_is_refused_at_once(self) -> None:
        def inner() -> None: ...

        make = dt.task_backends["default"].task_class
        with self.assertRaisesMessage(dt.InvalidTask, "module"):
            make(func=inner, priority=0, queue_name="default", backend="default", run_after=None)
        with self.assertRaises(dt.InvalidTask):
            tasks.note.using(queue_name="unknown")
        with self.assertRaises(dt.InvalidTask):
            tasks.note.using(priority=101)
        with self.assertRaises(dt.InvalidTask):
            tasks.note.using(run_after=timezone.now().replace(tzinfo=None))
        with self.assertRaises(TypeError):
            tasks.note.enqueue(object())
        with self.assertRaises(dt.TaskResultDoesNotExist):
            tasks.note.get_result("none")
        result = tasks.count.enqueue(1)
        with self.assertRaisesMessage(Exception, "does not match"):
            tasks.note.get_result(result.id)
        self.assertEqual(app.sync.queue("default").count(), 1)

    def test_only_tasks_are_run(self) -> None:
        job = app.sync.queue("default").add("os.getcwd")
        self.work()
        found = app.sync.queue("default").get_job(job.id).job
        self.assertEqual(found.state, "failed")
        self.assertIn("is not a task of django.tasks", found.errors[-1].message)
