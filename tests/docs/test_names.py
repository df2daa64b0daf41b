"""The page of names says what is there: each name in its middle column is looked up, with its arguments."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any, get_args

import pytest

import windlass
import windlass.errors
from windlass import (
    ConfigError,
    FlowProducer,
    Job,
    JobOptions,
    JobState,
    Queue,
    QueueEvents,
    Task,
    Windlass,
    Worker,
)
from windlass.api.event_feed import ALIASES
from windlass.backend import flow_requests, limit_requests, requests, schedule_requests
from windlass.backend.protocol import Backend
from windlass.backend.urls import backend_module
from windlass.cli.main import tree
from windlass.core.ids import content_id
from windlass.core.job import AttemptRecord, EventType, WorkerInfo
from windlass.core.limit_rules import Rate
from windlass.core.option_values import Priority, Unique
from windlass.core.outcome import AddOutcome, CancelResult
from windlass.handlers import from_callback
from windlass.schedules import Schedule, ScheduleInfo
from windlass.serde import Codec
from windlass.worker.emitter import WORKER_ALIASES, WORKER_EVENTS
from windlass.worker.options import Order, QueueSpec, WorkerOptions

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "names.md"

#: What stands before the dot of a verb.
_OWNERS: dict[str, Any] = {
    "queue": Queue,
    "job": Job,
    "worker": Worker,
    "app": Windlass,
    "task": Task,
    "FlowProducer": FlowProducer,
    "JobState": JobState,
    "Priority": Priority,
}
_CLASSES: dict[str, Any] = {
    **{name: getattr(windlass, name) for name in windlass.__all__},
    **{name: value for name, value in vars(windlass.errors).items() if isinstance(value, type)},
    **{
        name: value
        for module in (requests, flow_requests, limit_requests, schedule_requests)
        for name, value in vars(module).items()
        if isinstance(value, type)
    },
    **{kind.__name__: kind for kind in (Backend, Codec, Rate, Unique, Schedule, ScheduleInfo, QueueSpec)},
    **{kind.__name__: kind for kind in (CancelResult, JobOptions)},
    "content_id": content_id,
    "from_callback": from_callback,
}
_TASK_ARGUMENTS = set(inspect.signature(Windlass.task).parameters)
_OPTIONS = {
    *JobOptions.__struct_fields__,
    *WorkerOptions.__struct_fields__,
    *inspect.signature(Windlass).parameters,
    *inspect.signature(Worker).parameters,
    *inspect.signature(Queue).parameters,
    *_TASK_ARGUMENTS,
}
#: Names that need no owner: the row tells what they belong to.
_KNOWN = {
    *_OPTIONS,
    *_CLASSES,
    *(name for kind in (*_OWNERS.values(), Backend, QueueEvents) for name in dir(kind)),
    *(name for kind in (AttemptRecord, WorkerInfo) for name in kind.__struct_fields__),
    *(name for name in dir(windlass.errors.JobFailedError) if not name.startswith("_")),
    *(value for kind in (JobState, EventType, AddOutcome, CancelResult) for value in kind),
    *(*ALIASES, *WORKER_EVENTS, *WORKER_ALIASES, *JobState.__members__, *get_args(Order)),
    *("unknown_task", "stalled", "dead_jobs", "handler"),  # reasons, a stream, what is called
    *("opts", "queue_name"),  # other spellings in a flow's tree
}
#: No names: what users write, or forms of a text.
_FORMS = {"host:pid:random", "{name}", "Accept: application/json", "async with app", 'backoff="name"'}


def rows() -> list[tuple[str, str]]:
    """The middle column, with the left one to find the row by."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0] != "there" and not cells[0].startswith("---"):
            found.append((cells[0], cells[1]))
    return found


def routes() -> set[str]:
    """Every path that the dashboard serves."""
    text = "".join(path.read_text() for path in (ROOT / "src/windlass/dashboard/routes").glob("*.py"))
    return {re.sub(r":\w+}", "}", path) for path in re.findall(r'"(/[^"\s]*)"', text)}


def problem(span: str) -> str:
    """What is wrong with a name; empty when it is there."""
    text = span.removeprefix("await ").removeprefix("@")
    if text in _FORMS or text.strip('"()') in _KNOWN:
        return ""
    if text.startswith("/"):
        return "" if text in routes() else "no such route"
    if re.match(r"\w+://", text):
        return _store(text.split(":")[0])
    if text == "?namespace=":
        return ""
    if text.startswith("windlass "):
        return _command(text.split()[1:])
    if text.startswith("windlass."):
        return _module(text.partition("(")[0])
    if match := re.fullmatch(r"(\w+)=(.*)", text):
        return _option(*match.groups())
    return _call(text)


def _store(scheme: str) -> str:
    try:
        backend_module(f"{scheme}://here")
    except ConfigError:
        return "no such store"
    return ""


def _command(words: list[str]) -> str:
    command = tree.get_command(None, words[0])  # type: ignore[arg-type]  # it looks at the name alone
    if command is None:
        return "no such command"
    known = {option for parameter in command.params for option in parameter.opts}
    return "" if set(words[1:]) <= known else "no such option of the command"


def _module(path: str) -> str:
    try:
        importlib.import_module(path)
    except ImportError:
        module, _, name = path.rpartition(".")
        return "" if hasattr(importlib.import_module(module), name) else "no such name in the module"
    return ""


def _option(name: str, value: str) -> str:
    if name not in _OPTIONS:
        return "no such option"
    for struct in (WorkerOptions(), JobOptions()):
        if value.isdigit() and hasattr(struct, name) and getattr(struct, name) not in (int(value), None):
            return f"its default is {getattr(struct, name)}"
    return ""


def _call(text: str) -> str:
    """``owner.verb(arguments)`` and ``Class(arguments)``: both there, with arguments that are taken."""
    parsed = ast.parse(re.sub(r"\.\.\.(?=[,)])|\.\.\.$", "__", text.replace("[...]", "__")), mode="eval").body
    target: Any = None
    for node in _chain(parsed):
        if isinstance(node, ast.Name):
            target = _OWNERS.get(node.id) or _CLASSES.get(node.id)
            target = (
                getattr(Queue, node.id, None) or getattr(Job, node.id, None) if target is None else target
            )
        elif isinstance(node, ast.Attribute):
            target = _made(target)
            target = getattr(target, node.attr, None)
        elif isinstance(node, ast.Call):
            if wrong := _arguments(target, node):
                return wrong
        if target is None:
            return "no such name"
    return ""


def _chain(node: ast.AST) -> list[ast.AST]:
    """From the first name to the last call."""
    if isinstance(node, ast.Call):
        return [*_chain(node.func), node]
    if isinstance(node, ast.Attribute):
        return [*_chain(node.value), node]
    return [node]


def _made(target: Any) -> Any:
    """What a verb returns that makes something."""
    return Queue if target is Windlass.queue else target


def _arguments(target: Any, call: ast.Call) -> str:
    if target is Windlass.task:
        taken: Any = _TASK_ARGUMENTS | set(JobOptions.__struct_fields__)
        return "" if {keyword.arg for keyword in call.keywords} <= taken else "a task takes no such option"
    parameters = inspect.signature(target).parameters
    free = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for keyword in call.keywords:
        name = keyword.arg
        if name is None:
            continue
        if name not in parameters and not (free and name in _OPTIONS | {"children"}):
            return f"it takes no {name}"
        default = parameters[name].default if name in parameters else inspect.Parameter.empty
        if isinstance(keyword.value, ast.Constant) and default is not inspect.Parameter.empty:
            if keyword.value.value != default:
                return f"the default of {name} is {default}"
    return ""


@pytest.mark.feature("Y2", "Z3")
def test_every_name_of_the_page_is_there() -> None:
    wrong = [
        f"{there} -> `{span}`: {told}"
        for there, here in rows()
        for span in re.findall(r"`([^`]+)`", here)
        if (told := problem(span))
    ]
    assert wrong == []
    assert len(rows()) > 250


@pytest.mark.feature("Y2")
def test_routes_that_are_the_same_are_there() -> None:
    known = routes()
    for there, here in rows():
        if here.startswith("same"):
            for path in re.findall(r"`(?:GET |POST |DELETE )?(/[^`\s]+)`", there):
                assert re.sub(r":(\w+)", r"{\1}", path) in known, path


@pytest.mark.feature("Y2")
def test_the_page_promises_nothing_for_later() -> None:
    assert not re.search(r"\bplanned\b|comes with a later", PAGE.read_text())


@pytest.mark.parametrize(
    ("span", "told"),
    [
        ("queue.no_such_verb()", "no such name"),
        ("worker.close(force=True)", "the default of force is False"),
        ("worker.close(hard=False)", "it takes no hard"),
        ("lease=300", "its default is 30"),
        ("leese=30", "no such option"),
        ("/api/nothing", "no such route"),
        ("couch://host", "no such store"),
        ("windlass worker --forever", "no such option of the command"),
        ("NoSuchError(delay)", "no such name"),
    ],
)
def test_a_name_that_is_not_there_is_told(span: str, told: str) -> None:
    assert problem(span) == told
