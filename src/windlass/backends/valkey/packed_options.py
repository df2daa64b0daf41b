"""The options of a job as the server keeps them: an array, see ``layouts.Options``."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from windlass.backends.valkey.codes import UNIQUE_MODES, UNIQUE_NUMBERS
from windlass.backends.valkey.layouts import OPTIONS_LEFT_OUT, OPTIONS_SIZE, Options, PackedUnique
from windlass.core.option_values import Keep, StoredUnique
from windlass.core.options import StoredOptions


def server_options(options: StoredOptions, codec: str) -> int | tuple[Any, ...]:
    """The options that the server needs; 0 if all of them are defaults."""
    found = pack_options(options, codec)
    if found[OPTIONS_SIZE:] != OPTIONS_LEFT_OUT:
        return found
    first = found[:OPTIONS_SIZE]
    return 0 if first == USUAL else first


def pack_options(options: StoredOptions, codec: str) -> Options:
    """All options, with -1 or 0 for those that are not set: Lua arrays cannot contain nil."""
    numbers = {name: or_none(value) for name, value in zip(_NUMBERS, _numbers_of(options), strict=True)}
    return Options(
        **numbers,
        keep_completed_ms=or_none(options.keep_completed.age_ms),
        keep_completed_count=or_none(options.keep_completed.count),
        keep_failed_ms=or_none(options.keep_failed.age_ms),
        keep_failed_count=or_none(options.keep_failed.count),
        tags=options.tags or 0,
        codec=0 if (options.result_codec or codec) == "json" else options.result_codec or codec,
        group=0 if options.group is None else options.group,
        unique=0 if options.unique is None else server_unique(options.unique),
        lifo=int(options.lifo),
        schedule=options.schedule or 0,
        parent=options.parent or 0,
        root=options.root or 0,
    )


def server_unique(unique: StoredUnique) -> PackedUnique:
    """A unique key as the server reads it."""
    return PackedUnique(unique.key, UNIQUE_NUMBERS[unique.mode], or_none(unique.ttl_ms))


def read_options(options: StoredOptions, kept: list[Any]) -> StoredOptions:
    """``options`` of the record, with the values that the server has changed since."""
    known = Options(*kept[: len(Options._fields)])  # a later release may have written more
    said = pack_options(options, "")
    if known.result_ttl_ms != said.result_ttl_ms:
        options = msgspec.structs.replace(options, result_ttl_ms=known.result_ttl_ms)
    if known[_KEEPS] != said[_KEEPS]:
        options = msgspec.structs.replace(
            options,
            keep_completed=_keep(known.keep_completed_ms, known.keep_completed_count),
            keep_failed=_keep(known.keep_failed_ms, known.keep_failed_count),
        )
    if len(kept) == OPTIONS_SIZE:
        return options
    if (known.unique and tuple(known.unique)) != said.unique:
        options = msgspec.structs.replace(options, unique=_unique(known.unique))
    if (known.group, known.cost) != (said.group, said.cost):
        options = msgspec.structs.replace(options, group=known.group or None, cost=known.cost)
    return options


def _keep(age_ms: int, count: int) -> Keep:
    return Keep(None if age_ms < 0 else age_ms, None if count < 0 else count)


def _unique(kept: Any) -> StoredUnique | None:
    if not kept:
        return None
    key, mode, ttl_ms = kept
    return StoredUnique(key=key, mode=UNIQUE_MODES[mode], ttl_ms=None if ttl_ms < 0 else ttl_ms)


def or_none(value: int | None) -> int:
    """-1 for None."""
    return -1 if value is None else value


#: Numeric options that are sent unchanged, by their names in ``StoredOptions``.
_NUMBERS = tuple(
    field.name
    for field in msgspec.structs.fields(StoredOptions)
    if field.name in Options._fields and field.type in (int, int | None)
)
_numbers_of = attrgetter(*_NUMBERS)
#: The fields of ``Options`` about the retention of records.
_KEEPS = slice(Options._fields.index("keep_completed_ms"), Options._fields.index("keep_failed_count") + 1)
#: The options of a job without any; the server keeps 0 for them, since nearly all jobs have these.
USUAL = pack_options(StoredOptions(), "json")[:OPTIONS_SIZE]
