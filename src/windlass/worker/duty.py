"""The interface of duties: periodic work that a worker does for its store, in bounded steps."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Done(NamedTuple):
    """How much one step of a duty did, and whether there is more to do at once."""

    amount: int
    more: bool = False


class Duty(Protocol):
    """Periodic work. A worker that stops ends after the current step; another worker does the rest."""

    @property
    def name(self) -> str: ...

    @property
    def every_ms(self) -> int: ...

    @property
    def leader_only(self) -> bool: ...

    async def step(self) -> Done:
        """Do one bounded step."""
        ...


async def all_steps(duty: Duty) -> int:
    """Run steps until nothing is left to do. Returns how much was done."""
    total, more = 0, True
    while more:
        amount, more = await duty.step()
        total += amount
    return total
