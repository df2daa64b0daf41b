"""Join the adds of several callers into one request, which costs little more than a single add."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, cast

from windlass.backend import requests as rq
from windlass.backend.calls import Answer, StoreCall


def answer_all(
    calls: list[StoreCall[Any]],
    run: Callable[[StoreCall[Any], rq.Request[Any]], Answer],
    joined: Callable[[], None],
) -> list[Answer]:
    """Answer calls in order: ``run`` executes a request and returns the answer of a call.

    Consecutive adds are one request; ``joined`` counts it. If it fails, each add runs by itself.
    """
    answers: list[Answer] = []
    for group in _groups(calls):
        if len(group) > 1:
            joined()
            _, added, error = run(group[0], _join(group))
            if error is None:
                answers += split_answers(group, added)
                continue
        answers += [run(call, call.request) for call in group]
    return answers


def _groups(calls: list[StoreCall[Any]]) -> Iterator[list[StoreCall[Any]]]:
    """Yield the calls in order. Consecutive adds without flows form one group; any other call is alone."""
    group: list[StoreCall[Any]] = []
    for call in calls:
        plain = _is_plain_add(call.request)
        if group and not (plain and call.request.now_ms == group[0].request.now_ms):
            yield group
            group = []
        group.append(call)
        if not plain:
            yield group
            group = []
    if group:
        yield group


def _is_plain_add(request: rq.Request[Any]) -> bool:
    return type(request) is rq.Add and not any(new.depends_on or new.parent for new in request.jobs)


def _join(calls: list[StoreCall[Any]]) -> rq.Add:
    """Return one add with the jobs of a group."""
    jobs = [job for call in calls for job in cast("rq.Add", call.request).jobs]
    return rq.Add(jobs=jobs, now_ms=calls[0].request.now_ms)


def split_answers(calls: list[StoreCall[Any]], added: list[rq.Added]) -> list[Answer]:
    """Divide the answer of a joined add among its callers."""
    each = iter(added)
    return [(call, list(islice(each, len(cast("rq.Add", call.request).jobs))), None) for call in calls]
