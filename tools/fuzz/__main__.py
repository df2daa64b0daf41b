"""``scripts/fuzz``: campaigns of hostile input. Exit 1 when anything was neither taken nor refused."""

from __future__ import annotations

import argparse
import sys

from tools.fuzz.engine import Outcome, campaign
from tools.fuzz.poison import STORES, poison, store_url
from tools.fuzz.server import server_targets
from tools.fuzz.targets import pure_targets


def main() -> int:
    pure = pure_targets()
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument(
        "name",
        help="a target, 'pure' for all without a server, 'server' or 'poison' for all of those, 'list'",
    )
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.name == "list":
        print("\n".join([*pure, "server-valkey", "server-redis", *(f"poison-{name}" for name in STORES)]))
        return 0
    failed = False
    if asked.name in pure or asked.name == "pure":
        for target in pure.values() if asked.name == "pure" else [pure[asked.name]]:
            failed |= show(campaign(target, asked.inputs, asked.seed))
    elif asked.name.startswith("server"):
        wanted = ("valkey", "redis") if asked.name == "server" else (asked.name.removeprefix("server-"),)
        for name in wanted:
            with server_targets(name) as targets:
                for target in targets:
                    failed |= show(campaign(target, asked.inputs, asked.seed))
    elif asked.name == "poison" or asked.name.removeprefix("poison-") in STORES:
        for name in STORES if asked.name == "poison" else (asked.name.removeprefix("poison-"),):
            with store_url(name) as url:
                failed |= show(poison(name, url, asked.inputs, asked.seed))
    else:
        parser.error(f"unknown target {asked.name!r}: see 'list'")
    return int(failed)


def show(outcome: Outcome) -> bool:
    """Print how a campaign went; whether it found anything."""
    print(
        f"{outcome.target}: {outcome.inputs} inputs in {outcome.seconds:.0f} s, "
        f"{outcome.taken} taken, {outcome.refused} refused, {len(outcome.findings)} findings",
        flush=True,
    )
    for finding in outcome.findings[:5]:
        print(f"  input {finding.number}: {finding.what}\n    {finding.given}", flush=True)
    return bool(outcome.findings)


if __name__ == "__main__":
    sys.exit(main())
