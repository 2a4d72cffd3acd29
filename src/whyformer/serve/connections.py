"""Connections of the server: none may hold a place for long without a request, and the oldest of those make room."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from operator import attrgetter
from socket import MSG_PEEK

from uvicorn.protocols.http.h11_impl import H11Protocol

from whyformer.serve.safety import MOST_CONNECTIONS

MOST_PER_ADDRESS = MOST_CONNECTIONS // 2
HEADERS_WITHIN = 10.0  # seconds from the connection, or the last response, to the end of a request's headers
BODY_WITHIN = 120.0  # seconds until its body is there


class BoundedProtocol(H11Protocol):
    """A connection with limits of time for a request, and of number for one address and all of them.

    The owner of a server on this machine has the address of whoever floods it. So a connection that has sent nothing
    takes only the place of another such one, and not of one that came before the crowd of its address.
    """

    connections: set[BoundedProtocol]  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()
        self.heard = self.begun = False  # whether its first byte has arrived, and whether it was read
        self.address = (self.client or ("", 0))[0]
        self.early = False  # whether its address was not crowded when it came
        self._make_room()

    def data_received(self, data: bytes) -> None:
        if not self.begun:
            self.heard = self.begun = True
            self._make_room()
        super().data_received(data)

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

    @property
    def unread(self) -> bool:
        """Whether bytes are there that were not read: in a flood, many connections are accepted before one is read."""
        with suppress(OSError), self.transport.get_extra_info("socket").dup() as peeking:
            return bool(peeking.recv(1, MSG_PEEK))
        return False

    def _make_room(self) -> None:
        """Close connections that are waited for, silent ones first and of those the oldest, until all have room."""
        crowd = [each for each in self.connections if each.address == self.address]
        self.early |= len(crowd) <= MOST_PER_ADDRESS // 2
        over, of_one = len(crowd) - MOST_PER_ADDRESS, True
        if over <= 0:
            crowd, over, of_one = [*self.connections], len(self.connections) - MOST_CONNECTIONS, False
        if over <= 0:
            return
        if self.heard:
            crowd = [each for each in crowd if each.waits and each.begun == each.heard]
        else:
            crowd = [each for each in crowd if not each.heard and not (each.early and of_one)]
        for each in sorted(crowd, key=attrgetter("heard", "since")):
            if each is self:
                continue
            if each.unread:
                each.heard = True
                continue
            self.connections.discard(each)
            each.transport.abort()
            over -= 1
            if not over:
                return
        if self.heard:
            self.limit_concurrency = 0  # every place is at work: the request is answered with 503

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
