"""Connections of the server: none may hold a place for long without a request, and the oldest of those make room."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from whyformer.serve.safety import MOST_CONNECTIONS

MOST_PER_ADDRESS = MOST_CONNECTIONS // 2
HEADERS_WITHIN = 10.0  # seconds from the connection, or the last response, to the end of a request's headers
BODY_WITHIN = 120.0  # seconds until its body is there


def silent(connection: BoundedProtocol) -> bool:
    """Whether nothing has arrived: in a flood, many connections are accepted before the request of one is read."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.transport.get_extra_info("socket").fileno(), selectors.EVENT_READ)
        return not selector.select(0)


class BoundedProtocol(H11Protocol):
    """A connection with limits of time for a request, and of number for one address and all of them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()
        everybody: list[Any] = [each for each in self.connections if not each.transport.is_closing()]
        crowd = [each for each in everybody if (each.client or [""])[0] == (self.client or [""])[0]]
        if len(crowd) <= MOST_PER_ADDRESS:
            crowd = everybody if len(everybody) >= MOST_CONNECTIONS else []
        if crowd:  # the owner of a server on this machine has the address of whoever floods it: who sends nothing goes
            waiting = sorted((each for each in crowd if each.waits and each is not self), key=lambda each: each.since)
            next(filter(silent, waiting), [*waiting, self][0]).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.timer.cancel()
        self._arm()

    @property
    def waits(self) -> bool:
        """Whether the client is waited for: for a request, the rest of its body, or room to write."""
        done = self.cycle is None or self.cycle.response_complete
        return done or self.cycle.more_body or self.flow.write_paused

    def _arm(self) -> None:
        self.since = self.loop.time()
        self.timer = self.loop.call_later(HEADERS_WITHIN, self._expire)

    def _expire(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            if not self.cycle.more_body:
                return
            if (left := self.since + BODY_WITHIN - self.loop.time()) > 0:
                self.timer = self.loop.call_later(left, self._expire)
                return
        self.transport.abort()
