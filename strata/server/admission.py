"""Who may come in: the limit of open sequences, draining, and how long a request may take.

Pure; the caller has the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from strata.errors import NotReady, Overloaded, RequestError

_MAX_RETRY_AFTER_S = 60.0


class Admission:
    """Counts open sequences, from before a prompt is tokenized until its answer has ended.

    The engine guards its own queue as well; refusing here costs no tokenization, and refuses all sequences of a
    request or none.
    """

    def __init__(self, n_places: int, max_waiting: int, deadline_s: float = 0.0) -> None:
        self.n_places = n_places
        self.max_waiting = max_waiting
        self.n_open = 0
        self.is_draining = False
        self._deadline_s = deadline_s
        self._on_idle: Callable[[], None] | None = None
        self._mean_s = 1.0  # of a sequence's stay, moving

    def drain(self, on_idle: Callable[[], None]) -> None:
        """Refuse whatever comes from now on, and call `on_idle` once nothing is open any more."""
        self.is_draining = True
        self._on_idle = on_idle
        self._check_idle()

    def _check_idle(self) -> None:
        if self._on_idle is not None and self.n_open == 0:
            self._on_idle()

    @contextmanager
    def admit(self, n_sequences: int) -> Generator[None]:
        """Hold places for the sequences of one request.

        Raises: NotReady while draining; RequestError when they are more than all places and the waiting line, so that
        coming back would not help; Overloaded when they do not fit beside the others.
        """
        if self.is_draining:
            raise NotReady("the server is shutting down and takes no new requests")
        room = self.n_places + self.max_waiting
        if n_sequences > room:
            raise RequestError(
                f"the request needs {n_sequences} sequences; this server takes up to {room} at a time"
                f" ({self.n_places} running, {self.max_waiting} waiting)"
            )
        if self.n_open + n_sequences > room:
            raise Overloaded(
                f"{self.n_open} of {room} places are taken ({self.n_places} running, {self.max_waiting} waiting), and"
                f" the request needs {n_sequences}",
                retry_after_s=self.retry_after_s(),
            )
        self.n_open += n_sequences
        try:
            yield
        finally:
            self.n_open -= n_sequences
            self._check_idle()

    def note_stay(self, stay_s: float) -> None:
        """Take note of how long a request stayed, for retry_after_s."""
        self._mean_s += 0.2 * (stay_s - self._mean_s)

    def retry_after_s(self) -> float:
        """Return when a place is likely to be free, from the mean stay: at least 1 s, at most a minute."""
        return min(max(1.0, self._mean_s / max(1, self.n_places)), _MAX_RETRY_AFTER_S)

    def deadline_s(self, wanted_s: float | None) -> float | None:
        """Return the time limit of a request: its own wish, capped by the server's; None: no limit."""
        limits = [limit for limit in (wanted_s, self._deadline_s) if limit]
        return min(limits) if limits else None
