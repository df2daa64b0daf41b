"""How much the clients of one server may ask: rates, passwords, open event streams.

A client that is known (by a session, a token, the application) has rates of its own; strangers share those of
their address. Passwords are counted before they are compared, and a right one is given back: what is refused
is never judged. Sessions and tokens are too long to be guessed: they are looked up first and not counted.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable

from windlass.dashboard.problems import ApiError
from windlass.dashboard.settings import ServerLimits
from windlass.dashboard.throttle import CLIENTS, Buckets, network_of

#: Accounts that passwords are counted for.
_SLOTS = 65_536


class StreamPlace:
    """A place among the open event streams."""

    def __init__(self, streams: dict[str, int], client: str) -> None:
        self._streams = streams
        self._client = client
        self._open = True
        streams[client] = streams.get(client, 0) + 1

    def free(self) -> None:
        """Give it back. Idempotent."""
        if self._open:
            self._open = False
            self._streams[self._client] -= 1
            if not self._streams[self._client]:
                del self._streams[self._client]


class Passwords:
    """Counts passwords by the address that they come from and by the account that they are for.

    Guesses from many addresses use up what the account has left for addresses from which it never signed in;
    one from which it did has an allowance of its own, so that strangers cannot lock an account out.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._by_address = Buckets(limits.refusal_burst, limits.refusals_per_second)
        self._by_account = Buckets(limits.account_burst, limits.accounts_per_second, _SLOTS)
        self._by_both = Buckets(limits.refusal_burst, limits.refusals_per_second)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._key = secrets.token_bytes(16)

    def take(self, account: str, address: str, now_ms: float) -> float:
        """Count a password that is about to be compared. 0: compare it; else how long to wait instead."""
        counted = self._counted(account, address)
        waits = [buckets.wait(client, now_ms) for buckets, client in counted]
        if not any(waits):
            for buckets, client in counted:
                buckets.take(client, now_ms)
        return max(waits)

    def right(self, account: str, address: str, now_ms: float) -> None:
        """It was the right one."""
        for buckets, client in self._counted(account, address):
            buckets.give(client, now_ms)
        pair = (self._slot(account), address)
        self._known[pair] = None
        self._known.move_to_end(pair)
        if len(self._known) > CLIENTS:
            self._known.popitem(last=False)

    def _counted(self, account: str, address: str) -> list[tuple[Buckets, str]]:
        slot = self._slot(account)
        if (slot, address) in self._known:
            return [(self._by_both, f"{slot}@{address}")]
        return [(self._by_address, address), (self._by_account, slot)]

    def _slot(self, account: str) -> str:
        """Stands for the account. All of them are kept: no guess for one makes room for another's."""
        name = account.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(name, digest_size=2, key=self._key).hexdigest()


class Allowance:
    """Counts what each client asks, and refuses what is too much with 429."""

    def __init__(self, limits: ServerLimits, now_ms: Callable[[], float]) -> None:
        self._limits = limits
        self._now_ms = now_ms
        #: Open event streams by client.
        self.streams: dict[str, int] = {}
        self._requests = Buckets(limits.burst, limits.per_second)
        self._changes = Buckets(limits.change_burst, limits.changes_per_second)
        self._passwords = Passwords(limits)

    def request(self, client: str) -> None:
        """Count a request."""
        self._take(self._requests, client, "requests")

    def change(self, client: str) -> None:
        """Count a request that changes something."""
        self._take(self._changes, client, "changes")

    def password(self, account: str, address: str) -> None:
        """Count a password before it is compared; refused when there were too many wrong ones."""
        wait_ms = self._passwords.take(account, network_of(address), self._now_ms())
        if wait_ms:
            raise too_many("wrong passwords", wait_ms)

    def right_password(self, account: str, address: str) -> None:
        """The password that was counted last was right, and does not count."""
        self._passwords.right(account, network_of(address), self._now_ms())

    def stream(self, client: str) -> StreamPlace:
        """A place for one more event stream."""
        limits = self._limits
        mine = self.streams.get(client, 0)
        if mine >= limits.streams_per_client or sum(self.streams.values()) >= limits.streams:
            raise too_many("open event streams", 5_000)
        return StreamPlace(self.streams, client)

    def _take(self, buckets: Buckets, client: str, what: str) -> None:
        wait_ms = buckets.take(client, self._now_ms())
        if wait_ms:
            raise too_many(what, wait_ms)


def too_many(what: str, wait_ms: float) -> ApiError:
    """The refusal of a client that asks too much."""
    seconds = max(round(wait_ms / 1000 + 0.5), 1)
    advice = f"Wait {seconds} s; lists and bulk changes take many jobs at once."
    return ApiError(429, "too_many", f"too many {what}", advice, {"Retry-After": str(seconds)})
