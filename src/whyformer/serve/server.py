"""uvicorn with the application: an address, a token where others can reach it, and an end on Ctrl-C."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType

from whyformer.errors import BadInput
from whyformer.extras import require
from whyformer.serve.app import Served, application
from whyformer.serve.safety import is_loopback

GRACE = 3  # seconds for answers that are on their way when the server closes
MOST_CONNECTIONS = 512


def address(host: str, port: int, token: str | None) -> str:
    """Where to open it."""
    name = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::1", "::") else host
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(128)  # from now on nobody else can
    except (OSError, OverflowError) as error:
        made.close()
        raise BadInput(f"{host}, port {port} cannot be used ({error}): choose another --host or --port.") from error
    return made


def run(served: Served, port: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; ``say`` hears the address."""
    require("uvicorn", why="the server")
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Jobs end now, and who listens to one is told: listening would keep the server open."""
            threading.Thread(target=served.jobs.close, daemon=True).start()
            super().handle_exit(sig, frame)

    listening = bound(served.host, port)
    config = uvicorn.Config(
        application(served),
        log_level="warning",
        access_log=False,  # addresses may hold the token
        timeout_graceful_shutdown=GRACE,
        limit_concurrency=MOST_CONNECTIONS,
        proxy_headers=False,
        server_header=False,
    )
    say(address(served.host, listening.getsockname()[1], served.token))
    if not is_loopback(served.host):
        say(
            "From another machine, put this one's name there. Everybody who has the address can ask the models and "
            "read all results; the way is not encrypted."
        )
    try:
        Server(config).run(sockets=[listening])
    except KeyboardInterrupt:  # raised again by uvicorn, once everything is closed
        pass
    finally:
        listening.close()
    if served.jobs.at_work:  # taking the interpreter down under a running model would crash it; everything is stored
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
