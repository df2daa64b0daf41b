"""Variants: other ways to run contract tests, so that they also take the code paths of production.

A test normally sets the time of every request, sends one request at a time, and adds jobs without a request
id. Production does none of this. A *variant* changes some of it:

* ``own``: requests carry no time, the store uses its own clock. If that is the clock of this process, the
  harness moves it, and tests that let time pass run as well. The clock of a server cannot be moved.
* ``together``: every request is sent at the same time as independent ones.
* ``plain``: jobs are added as queues add them, with their own id as request id.

``LEFT_OUT`` lists tests that make no sense in a variant, with the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, NamedTuple, cast

from windlass_conformance import contract_tests
from windlass_conformance.harness import Variant

#: By name.
VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "own-plain": Variant(own=True, plain=True),
        "own-plain-together": Variant(own=True, plain=True, together=True),
        "given-together": Variant(together=True),
    }
)

#: Names that a test uses to move or read the time: it cannot run if the clock cannot be moved.
_MOVES_TIME = frozenset({"pass_ms", "now_ms", "START_MS"})
#: Arguments that delay something: on a slow machine it may happen while the test still runs.
_COMES_LATER = frozenset({"delay_ms", "run_at_ms", "expires_in_ms", "lease_ms", "hold_ms", "ttl_ms"})

#: Tests that cannot run, with the reason, by the part of the variant that prevents them.
LEFT_OUT: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "together": dict.fromkeys(
            (
                "test_a_bulk_add_repeated_under_its_request_ids_adds_nothing",
                "test_a_forgotten_queue_is_no_longer_listed_nor_paused",
                "test_a_forgotten_queue_that_is_paused_again_is_listed_again",
                "test_a_queue_tells_since_when_its_oldest_job_is_ready",
                "test_a_queue_that_still_has_jobs_is_not_forgotten",
                "test_a_queue_whose_jobs_are_all_gone_stays_known",
                "test_blocked_jobs_are_listed_and_counted",
                "test_counters_agree_with_history_after_a_random_life",
                "test_counters_tell_what_happened_per_task",
                "test_queues_are_listed_by_name_with_their_counts",
                "test_suspended_jobs_are_listed_purged_and_counted",
            ),
            "it lists all queues or counters, and would see those of the requests that come along",
        ),
        "own on amqp": dict.fromkeys(
            (
                "test_a_claim_leaves_due_jobs_of_other_queues_alone",
                "test_a_queue_tells_since_when_its_oldest_job_is_ready",
                "test_a_thousand_due_jobs_are_promoted_unless_a_limit_is_given",
                "test_one_claim_promotes_at_most_a_thousand_jobs",
                "test_promote_covers_all_queues_earliest_first_up_to_its_limit",
                "test_promoting_none_only_tells_when_the_next_job_is_due",
            ),
            "it has due jobs that no worker promoted, and the coordinator promotes by itself when it is time",
        ),
    }
)


class Runs(NamedTuple):
    """Which contract tests of one test module run in which variants."""

    #: Names of variants by deployment, as the test module names it.
    variants: Mapping[str, tuple[str, ...]]
    #: The store, as in its URL, for reasons that apply to one store only.
    store: str = ""
    #: Whether the store uses the clock of this process.
    moves_clock: bool = True
    #: Modules of the suite; empty: all.
    modules: tuple[str, ...] = ()

    def tests(self) -> dict[str, Callable[..., Any]]:
        """The tests that run in at least one of the variants."""
        return {name: test for name, test in contract_tests().items() if self.pairs(test)}

    def pairs(self, test: Callable[..., Any]) -> list[tuple[str, str]]:
        """The deployments and variants in which ``test`` runs."""
        if self.modules and test.__module__.rpartition(".")[2] not in self.modules:
            return []
        return [
            (deployment, name)
            for deployment, names in self.variants.items()
            for name in names
            if self.why_not(test, VARIANTS[name]) is None
        ]

    def why_not(self, test: Callable[..., Any], variant: Variant) -> str | None:
        """Why ``test`` cannot run in ``variant``; None if it can."""
        parts = [part for part in variant._fields if getattr(variant, part)]
        for part in (*parts, *(f"{part} on {self.store}" for part in parts)):
            reason = LEFT_OUT.get(part, {}).get(test.__name__)
            if reason is not None:
                return reason
        function = cast("FunctionType", inspect.unwrap(test))
        if variant.own and not self.moves_clock and _lets_time_pass(function, set()):
            return "it lets time pass or compares it, and the server's clock cannot be moved"
        return None


def _lets_time_pass(function: FunctionType, seen: set[FunctionType]) -> bool:
    """Whether a test, or a function of the suite that it calls, moves or reads the time."""
    seen.add(function)
    names = set(_names(function.__code__))
    if names & (_MOVES_TIME | _COMES_LATER):
        return True
    called = [function.__globals__.get(name) for name in names]
    return any(
        isinstance(one, FunctionType) and one not in seen and _lets_time_pass(one, seen)
        for one in called
        if getattr(one, "__module__", "").startswith(__package__)
    )


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, tuple):  # names of arguments
            yield from (name for name in const if isinstance(name, str))
        elif isinstance(const, CodeType):
            yield from _names(const)
