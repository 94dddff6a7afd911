"""How often a login may be tried: enough for a forgetful person, too little for a guessing program.

Counted by address and name, so that nobody can lock another person out, and by address alone. Behind a
proxy the address is the one it forwards.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable

WINDOW_S = 60.0
MOST_BY_NAME = 5
MOST_BY_ADDRESS = 60
"""A class behind one address logs in at once."""

KEPT = 10_000


class Attempts:
    """Failed attempts of the last `WINDOW_S` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str | None], deque[float]] = OrderedDict()

    def begin(self, address: str, name: str) -> bool:
        """Whether one more may be tried now. It counts at once: many at the same time are no way around."""
        limits = {(address, name): MOST_BY_NAME, (address, None): MOST_BY_ADDRESS}
        if any(len(self._recent(key)) >= most for key, most in limits.items()):
            return False
        for key in limits:
            self._recent(key).append(self._clock())
        return True

    def succeed(self, address: str, name: str) -> None:
        """The last attempt was right: what was typed wrong before it is forgotten."""
        self._failures.pop((address, name), None)
        if by_address := self._failures.get((address, None)):
            by_address.pop()

    def _recent(self, key: tuple[str, str | None]) -> deque[float]:
        times = self._failures.setdefault(key, deque())
        self._failures.move_to_end(key)
        while times and times[0] <= self._clock() - WINDOW_S:
            times.popleft()
        while len(self._failures) > KEPT:
            self._failures.popitem(last=False)
        return times
