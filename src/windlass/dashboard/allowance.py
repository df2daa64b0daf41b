"""Limits for the clients of one server: request rates, wrong passwords, open event streams.

A known client (by session, token or the application) has its own rates. Unknown clients share those of their
address. A password is counted before it is compared, and a correct one is subtracted again, so a refused
password is never compared. Sessions and tokens are too long to guess: they are looked up without counting.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable

from windlass.dashboard.problems import ApiError
from windlass.dashboard.settings import ServerLimits
from windlass.dashboard.throttle import CLIENTS, Buckets, network_of

#: Accounts are hashed to this many buckets.
_SLOTS = 65_536


class StreamSlot:
    """One of the permitted open event streams."""

    def __init__(self, streams: dict[str, int], client: str) -> None:
        self._streams = streams
        self._client = client
        self._open = True
        streams[client] = streams.get(client, 0) + 1

    def free(self) -> None:
        """Release it. Idempotent."""
        if self._open:
            self._open = False
            self._streams[self._client] -= 1
            if not self._streams[self._client]:
                del self._streams[self._client]


class Passwords:
    """Counts passwords by the address that sent them and by account.

    Guesses from many addresses use up the account's allowance for addresses from which it never signed in. An
    address from which it did has its own allowance, so that other clients cannot lock an account out.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._by_address = Buckets(limits.refusal_burst, limits.refusals_per_second)
        self._by_account = Buckets(limits.account_burst, limits.accounts_per_second, _SLOTS)
        self._by_both = Buckets(limits.refusal_burst, limits.refusals_per_second)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._key = secrets.token_bytes(16)

    def take(self, account: str, address: str, now_ms: float) -> float:
        """Count a password before it is compared. Returns 0 if it may be compared, else how long to wait."""
        counted = self._counted(account, address)
        waits = [buckets.wait(client, now_ms) for buckets, client in counted]
        if not any(waits):
            for buckets, client in counted:
                buckets.take(client, now_ms)
        return max(waits)

    def right(self, account: str, address: str, now_ms: float) -> None:
        """Record that the password was correct."""
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
        """The bucket of an account: a keyed 16-bit hash. All buckets are kept, so guesses evict none."""
        name = account.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(name, digest_size=2, key=self._key).hexdigest()


class Allowance:
    """Counts the requests of each client and refuses too many with 429."""

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
        """Count a password before it is compared. Refused if there were too many wrong ones."""
        wait_ms = self._passwords.take(account, network_of(address), self._now_ms())
        if wait_ms:
            raise too_many("wrong passwords", wait_ms)

    def right_password(self, account: str, address: str) -> None:
        """Do not count the last password, because it was correct."""
        self._passwords.right(account, network_of(address), self._now_ms())

    def stream(self, client: str) -> StreamSlot:
        """Reserve one more event stream."""
        limits = self._limits
        mine = self.streams.get(client, 0)
        if mine >= limits.streams_per_client or sum(self.streams.values()) >= limits.streams:
            raise too_many("open event streams", 5_000)
        return StreamSlot(self.streams, client)

    def _take(self, buckets: Buckets, client: str, what: str) -> None:
        wait_ms = buckets.take(client, self._now_ms())
        if wait_ms:
            raise too_many(what, wait_ms)


def too_many(what: str, wait_ms: float) -> ApiError:
    """The error for a client that exceeds a limit."""
    seconds = max(round(wait_ms / 1000 + 0.5), 1)
    advice = f"Wait {seconds} s; lists and bulk changes take many jobs at once."
    return ApiError(429, "too_many", f"too many {what}", advice, {"Retry-After": str(seconds)})
