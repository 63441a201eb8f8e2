"""Waits for finished steps: tickets meet the tasks that wait for them.

Of all tasks inside `wait` exactly one, the leader, waits on the eventfd; when it wakes, is cancelled or has its own
result, it wakes the others, and one of them leads. So no task of its own is needed, and a waiter that goes away takes
nothing with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import trio

__all__ = ["Completions"]

T = TypeVar("T")


class Completions(Generic[T]):
    """Results by ticket. `collect` returns what has finished since its last call, without blocking."""

    def __init__(self, fd: int, collect: Callable[[], Iterable[tuple[int, T]]]) -> None:
        self._fd = fd
        self._collect = collect
        self._done: dict[int, T] = {}
        self._led = False
        self._followers = trio.lowlevel.ParkingLot()

    async def wait(self, ticket: int) -> T:
        """Return the ticket's result, once.

        Cancellation: immediate; the result stays readable by a later wait. Raises: what `collect` raises.
        """
        await trio.lowlevel.checkpoint()
        while True:
            result = self.take_nowait(ticket)
            if result is not None:
                return result
            if self._led:
                await self._followers.park()
                continue
            self._led = True
            try:
                with contextlib.suppress(trio.ClosedResourceError):  # `collect` says what that means
                    await trio.lowlevel.wait_readable(self._fd)
            finally:
                self._led = False
                self._followers.unpark_all()

    def take_nowait(self, ticket: int) -> T | None:
        """Return the ticket's result if it is there, once."""
        self._done.update(self._collect())
        return self._done.pop(ticket, None)
