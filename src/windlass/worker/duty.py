"""What a duty is: something that a worker does for its store now and then, in bounded steps."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Done(NamedTuple):
    """What one step of a duty did, and whether there is more to do at once."""

    amount: int
    more: bool = False


class Duty(Protocol):
    """Something to do now and then. A worker that stops leaves what is more than one step to another."""

    @property
    def name(self) -> str: ...

    @property
    def every_ms(self) -> int: ...

    @property
    def leader_only(self) -> bool: ...

    async def step(self) -> Done:
        """One bounded step."""
        ...


async def all_steps(duty: Duty) -> int:
    """Step by step, until nothing is left to do; returns how much was done."""
    total, more = 0, True
    while more:
        amount, more = await duty.step()
        total += amount
    return total
