"""Rules and slots: cron, intervals, bounds, clock changes, and the decisions about firing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.job import NewJob
from windlass.core.schedule_rules import (
    SLOTS_PER_STEP,
    Rule,
    Schedule,
    ScheduleRecord,
    check_cron,
    first_slot,
    next_slot,
    plan_firing,
    slot_job_id,
    to_schedule,
)
from windlass.errors import ConfigError

pytestmark = pytest.mark.feature("B8", "B13")

TEMPLATE = NewJob(queue="q", id="", task="t", payload=b"{}")


def ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


def slots(rule: Rule, after: datetime, count: int) -> list[datetime]:
    """The next slots, in the rule's own zone."""
    found: list[datetime] = []
    at = ms(after)
    for _ in range(count):
        slot = next_slot(rule, at)
        assert slot is not None
        assert slot > at
        found.append(datetime.fromtimestamp(slot / 1000, ZoneInfo(rule.timezone)))
        at = slot
    return found


@pytest.mark.parametrize(
    "rule",
    [
        Rule(every_ms=0),
        Rule(every_ms=-5),
        Rule(cron="*/0 * * * *"),
        Rule(cron="0 0 31 2 *"),
        Rule(cron="* * * * *", timezone="../../etc/passwd"),
    ],
)
def test_a_stored_rule_that_is_not_valid_is_a_config_error(rule: Rule) -> None:
    with pytest.raises(ConfigError):
        next_slot(rule, 1_000, grid_ms=0)


def wall(*parts: int, zone: str, fold: int = 0) -> datetime:
    return datetime(*parts, tzinfo=ZoneInfo(zone), fold=fold)  # type: ignore[arg-type, misc]


BERLIN, CAIRO, HOWE = "Europe/Berlin", "Africa/Cairo", "Australia/Lord_Howe"


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        # the clock jumps from 2:00 to 3:00
        ("30 2 * * *", BERLIN, (2025, 3, 29, 12), [(2025, 3, 30, 3, 0), (2025, 3, 31, 2, 30)]),
        ("0 1-4 * * *", BERLIN, (2025, 3, 29, 23), [(2025, 3, 30, 1), (2025, 3, 30, 3), (2025, 3, 30, 4)]),
        ("*/15 2 * * *", BERLIN, (2025, 3, 29, 23), [(2025, 3, 30, 3, 0), (2025, 3, 31, 2, 0)]),
        ("*/10 30 2 * * *", BERLIN, (2025, 3, 29, 23), [(2025, 3, 30, 3, 0), (2025, 3, 31, 2, 30)]),
        # the hour from 2:00 comes twice
        ("30 2 * * *", BERLIN, (2025, 10, 25, 12), [(2025, 10, 26, 2, 30), (2025, 10, 27, 2, 30)]),
        (
            "0 2,3 * * *",
            BERLIN,
            (2025, 10, 25, 12),
            [(2025, 10, 26, 2), (2025, 10, 26, 3), (2025, 10, 27, 2)],
        ),
        # midnight itself is jumped over
        ("0 0 * * *", CAIRO, (2025, 4, 24, 12), [(2025, 4, 25, 1, 0), (2025, 4, 26, 0, 0)]),
        # half an hour is jumped over
        ("15 2 * * *", HOWE, (2025, 10, 4, 1), [(2025, 10, 4, 2, 15), (2025, 10, 5, 2, 30)]),
    ],
)
def test_rules_about_the_time_of_day_follow_the_wall_clock(
    cron: str, zone: str, after: tuple[int, ...], expected: list[tuple[int, ...]]
) -> None:
    found = slots(Rule(cron=cron, timezone=zone), wall(*after, zone=zone), len(expected))
    assert found == [wall(*parts, zone=zone) for parts in expected]


@pytest.mark.parametrize("cron", ["*/30 * * * *", "0,30 0-23 * * *"])
@pytest.mark.parametrize("day", [(2025, 3, 30), (2025, 10, 26)])
def test_rules_that_run_in_every_hour_follow_real_time(day: tuple[int, int, int], cron: str) -> None:
    after = datetime(*day, tzinfo=UTC) - timedelta(hours=2)
    found = slots(Rule(cron=cron, timezone=BERLIN), after, 12)
    assert [
        (b - a).total_seconds() for a, b in zip(map(_utc, found), map(_utc, found[1:]), strict=False)
    ] == [1_800] * 11


#: Clock changes that are not a whole hour. Names that share one are left out, and years that repeat it.
ODD_CHANGES = [
    (HOWE, "2026-04-04T15:00:00"),
    (HOWE, "2026-10-03T15:30:00"),
    ("America/Santo_Domingo", "1970-02-21T04:30:00"),
    ("America/Santo_Domingo", "1970-10-25T05:00:00"),
    ("Africa/Monrovia", "1972-01-07T00:44:30"),
    ("America/Montevideo", "1974-01-13T03:00:00"),
    ("America/Montevideo", "1974-09-01T02:30:00"),
    ("America/Guyana", "1975-08-01T03:45:00"),
    ("Asia/Tehran", "1977-10-20T19:30:00"),
    ("Asia/Tehran", "1978-11-10T20:00:00"),
    ("Pacific/Nauru", "1979-02-09T14:30:00"),
    ("Pacific/Kiritimati", "1979-10-01T10:40:00"),
    ("Pacific/Rarotonga", "1979-03-04T09:30:00"),
    ("Pacific/Rarotonga", "1979-10-28T10:00:00"),
    ("Asia/Kuala_Lumpur", "1981-12-31T16:00:00"),
    ("America/Paramaribo", "1984-10-01T03:30:00"),
    ("Asia/Kathmandu", "1985-12-31T18:30:00"),
    ("Asia/Thimphu", "1987-09-30T18:30:00"),
    ("Asia/Colombo", "1996-10-25T18:00:00"),
    ("Pacific/Pitcairn", "1998-04-27T08:30:00"),
    ("Asia/Colombo", "2006-04-14T18:30:00"),
    ("America/Caracas", "2007-12-09T07:00:00"),
    ("Asia/Pyongyang", "2015-08-14T15:00:00"),
    ("Pacific/Norfolk", "2015-10-03T14:30:00"),
    ("America/Caracas", "2016-05-01T07:00:00"),
    ("Asia/Pyongyang", "2018-05-04T15:00:00"),
]


@pytest.mark.parametrize("minutes", [[0], [15], [29], [30], [45], [15, 45], [5, 20], [*range(0, 60, 10)]])
@pytest.mark.parametrize(("zone", "change"), ODD_CHANGES)
def test_rules_that_run_in_every_hour_never_pause_longer_when_clocks_change_by_part_of_an_hour(
    zone: str, change: str, minutes: list[int]
) -> None:
    at, tz, hour = datetime.fromisoformat(f"{change}+00:00"), ZoneInfo(zone), timedelta(hours=1)
    old = timezone((at - hour).astimezone(tz).utcoffset() or timedelta())
    assert ((at.astimezone(tz).utcoffset() or timedelta()) - old.utcoffset(None)) % hour, "not odd"
    rule = Rule(cron=f"{','.join(map(str, minutes))} * * * *", timezone=zone)
    found = [_utc(slot) for slot in slots(rule, at - 3 * hour, 7 * len(minutes))]
    longest = max((b - a - 1) % 60 + 1 for a, b in zip(minutes, [*minutes[1:], minutes[0]], strict=True))
    pauses = [b - a for a, b in pairwise([at - 3 * hour, *found])]
    assert max(pauses) <= timedelta(minutes=longest)
    named = {slot for slot in found if slot.astimezone(tz).minute in minutes}
    assert all(at <= slot < at + hour and slot.astimezone(old).minute in minutes for slot in {*found} - named)
    for step in range(0, 3 * 120):
        after = at - 2 * hour + step * timedelta(seconds=30)
        assert _utc(slots(rule, after, 1)[0]) == next(slot for slot in found if slot > after)
        local = after.astimezone(tz)
        assert after in named or local.second or local.minute not in minutes, "by the clock it is a slot"


def test_a_slot_is_after_the_time_asked_for_when_its_hour_comes_twice() -> None:
    second = wall(2025, 10, 26, 2, 20, zone=BERLIN, fold=1)
    assert slots(Rule(cron="15,45 0-23 * * *", timezone=BERLIN), second, 1) == [
        wall(2025, 10, 26, 2, 45, zone=BERLIN, fold=1)
    ]


def _utc(instant: datetime) -> datetime:
    return instant.astimezone(UTC)


def test_days_of_month_and_week_follow_cron() -> None:
    after = datetime(2025, 1, 1, tzinfo=UTC)
    assert [s.day for s in slots(Rule(cron="0 0 L * *"), after, 3)] == [31, 28, 31]
    assert [s.day for s in slots(Rule(cron="0 0 * * MON#1"), after, 2)] == [6, 3]
    assert [s.day for s in slots(Rule(cron="0 0 29 2 *"), after, 1)] == [29]


@given(st.integers(1, 10**9), st.integers(0, 10**12), st.integers(0, 10**13))
def test_intervals_stay_on_their_grid(every_ms: int, grid_ms: int, after_ms: int) -> None:
    slot = next_slot(Rule(every_ms=every_ms), after_ms, grid_ms=grid_ms)
    assert slot is not None
    assert (slot - grid_ms) % every_ms == 0
    assert slot > after_ms or slot == grid_ms
    assert slot - every_ms <= max(after_ms, grid_ms)


def test_the_first_slot_is_one_interval_away_or_at_the_start() -> None:
    def first(now_ms: int, start_ms: int | None = None) -> int | None:
        record = ScheduleRecord(
            queue="q", name="s", template=TEMPLATE, rule=Rule(every_ms=10, start_ms=start_ms)
        )
        return first_slot(record, now_ms)

    assert first(1_000) == 1_010
    assert first(1_000, start_ms=1_000) == 1_000
    assert first(1_000, start_ms=5_005) == 5_005
    assert first(1_000, start_ms=7) == 1_007


def record(missed: str = "skip", **fields: object) -> ScheduleRecord:
    made = Schedule(every=10, missed=missed).record("q", "s", TEMPLATE)  # type: ignore[arg-type]
    made.next_ms = 100_000
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("missed", "now_s", "fired", "next_s"),
    [
        ("skip", 100, [100], 110),
        ("skip", 135, [100, 110, 120, 130], 140),  # late, not missed
        ("skip", 1_000, [950, 960, 970, 980, 990, 1_000], 1_010),
        ("once", 135, [100, 110, 120, 130], 140),
        ("once", 1_000, [100], 1_010),
        ("all", 1_000, list(range(100, 1_010, 10)), 1_010),
    ],
)
def test_late_slots_are_fired_and_missed_ones_follow_their_rule(
    missed: str, now_s: int, fired: list[int], next_s: int
) -> None:
    plan = plan_firing(record(missed), now_s * 1_000)
    assert plan.slots == [slot * 1_000 for slot in fired]
    assert plan.next_ms == next_s * 1_000


def test_one_step_is_bounded() -> None:
    plan = plan_firing(record("all"), 10_000_000)
    assert len(plan.slots) == SLOTS_PER_STEP
    assert plan.next_ms == plan.slots[-1] + 10_000


def test_nothing_is_planned_after_the_end() -> None:
    plan = plan_firing(record("all", end_ms=115_000), 200_000)
    assert (plan.slots, plan.next_ms) == ([100_000, 110_000], None)


def test_ids_of_jobs_are_safe_whatever_the_schedule_is_called() -> None:
    assert slot_job_id("mail.send", 5) == "mail.send.5"
    odd = slot_job_id("every day, ä", 5)
    assert odd == slot_job_id("every day, ä", 5) != slot_job_id("every day, b", 5)
    assert odd.endswith(".5")
    assert odd.replace(".", "").isalnum()


@pytest.mark.parametrize(
    "wrong",
    [
        {"cron": "* * * * * * *"},
        {"cron": "0 0 31 2 *"},
        {"cron": "0 25 * * *"},
        {"cron": "* * * * *", "timezone": ""},
        {"every": -1},
        {"every": True},
        {"every": 5, "start": datetime(2025, 1, 1)},
        {"every": 5, "start": 20, "end": 10},
        {"every": 5, "limit": True},
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        to_schedule(wrong)


def test_aliases_and_spaces_make_no_other_rule() -> None:
    assert Schedule(cron="@hourly").rule == Schedule(cron=" 0  * * * * ").rule
    assert to_schedule({"pattern": "0 * * * *", "tz": BERLIN}).rule.timezone == BERLIN


def test_what_is_no_schedule_and_no_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match="schedule"):
        to_schedule(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cron"):
        check_cron(5)


def test_a_schedule_that_is_not_due_has_no_plan() -> None:
    record = ScheduleRecord(queue="q", name="n", template=TEMPLATE, rule=Rule(every_ms=1_000), next_ms=2_000)
    with pytest.raises(ConfigError, match="due"):
        plan_firing(record, 1_999)


def test_a_cron_rule_begins_at_its_start() -> None:
    start = datetime(2030, 5, 1, 12, tzinfo=UTC)
    rule = Rule(cron="0 12 * * *", start_ms=ms(start))
    assert next_slot(rule, ms(datetime(2030, 1, 1, tzinfo=UTC))) == ms(start)


def test_the_second_coming_of_an_hour_has_no_second_slot() -> None:
    rule = Rule(cron="30 2 * * *", timezone="Europe/Berlin")
    second_hour = datetime(2030, 10, 27, 1, 10, tzinfo=UTC)  # 02:10 again
    assert next_slot(rule, ms(second_hour)) == ms(datetime(2030, 10, 28, 1, 30, tzinfo=UTC))
