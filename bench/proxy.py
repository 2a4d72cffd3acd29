"""Does the proxy hold? Many clients at once: lost or altered completions, and explanations that were left out.

    python -m bench.proxy [--clients 20] [--seconds 60]

A server with prepared answers, and the proxy with a tiny random language model in front of it, are processes of their
own. Each client asks for completions without a pause, whole and streamed in turn, each with a wish for citations. What
arrives without the extra field is compared with the server's bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from bench.timing import machine
from tests.support import language

QUESTION = "what is the capital of france ?"
DOCUMENTS = ["the capital of france is paris . rome is big .", "a cat sat on the mat . the dog ran home ."]
WORDS = "it is paris . the cat sat on the mat .".split()
MARK = b"whyformer"
UPSTREAM = """
import asyncio, sys, uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from bench.proxy import events, whole
from whyformer.serve.app import bound

app = FastAPI()

@app.post("/v1/chat/completions")
async def chat(request: Request):
    body = await request.json()
    seed = body["seed"]
    if not body.get("stream"):
        return Response(whole(seed), media_type="application/json")
    async def written():
        for event in events(seed):
            await asyncio.sleep(0)
            yield event
    return StreamingResponse(written(), media_type="text/event-stream")

listening = bound("127.0.0.1", 0)
print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
try:
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
except KeyboardInterrupt:
    pass
"""


def answer(seed: int) -> list[str]:
    """Words that differ from request to request."""
    return [*WORDS, hashlib.blake2b(str(seed).encode(), digest_size=4).hexdigest(), "."]


def whole(seed: int) -> bytes:
    """The body of a completion, with spaces that another writer of JSON would not keep."""
    text = " ".join(answer(seed))
    return (
        f'{{ "id": "c-{seed}",  "object": "chat.completion", "model":"tiny", "choices": [ {{"index": 0, "message": '
        f'{{"role": "assistant", "content": "{text}"}}, "finish_reason": "stop"}}] }}\n'
    ).encode()


def events(seed: int) -> list[bytes]:
    """The events of a streamed completion."""
    chunks = [{"id": f"c-{seed}", "choices": [{"index": 0, "delta": {"content": f"{w} "}}]} for w in answer(seed)]
    return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]


def parted(body: bytes, streamed: bool) -> tuple[bytes, dict[str, Any]]:
    """What arrived without the field, and the field."""
    if streamed:
        parts = body.split(b"\n\n")
        (at,) = [i for i, part in enumerate(parts) if MARK in part]
        return b"\n\n".join(parts[:at] + parts[at + 1 :]), json.loads(parts[at][5:])["whyformer"]
    head, text = body.split(b',"whyformer":')
    added, end = json.JSONDecoder().raw_decode(text.decode())
    return head + text.decode()[end:].encode(), added


class Client(threading.Thread):
    """Asks until the time is over."""

    def __init__(self, port: int, number: int, until: float) -> None:
        super().__init__()
        self.port, self.number, self.until = port, number, until
        self.counts: Counter[str] = Counter()
        self.seconds: list[float] = []

    def run(self) -> None:
        connection, turn = HTTPConnection("127.0.0.1", self.port, timeout=120), 0
        while time.monotonic() < self.until:
            seed, streamed = 1_000_000 * self.number + turn, bool(turn % 2)
            turn += 1
            content = {"messages": [{"role": "user", "content": QUESTION}], "seed": seed, "stream": streamed}
            content["whyformer"] = {"cite": True, "documents": DOCUMENTS}
            begun = time.perf_counter()
            try:
                headers = {"content-type": "application/json"}
                connection.request("POST", "/v1/chat/completions", json.dumps(content), headers)
                reply = connection.getresponse()
                body = reply.read()
            except (OSError, HTTPException) as error:
                self.counts[f"lost: {type(error).__name__}"] += 1
                connection.close()
                continue
            if reply.status != 200:
                self.counts[f"lost: status {reply.status}"] += 1
                continue
            self.seconds.append(time.perf_counter() - begun)
            self.counts["completions"] += 1
            try:
                rest, added = parted(body, streamed)
                altered = rest != (b"".join(events(seed)) if streamed else whole(seed))
            except ValueError:
                altered, added = True, {}
            self.counts["altered"] += altered
            self.counts[f"not explained: {added['reason']}" if "reason" in added else "explained"] += 1


def started(command: list[str]) -> tuple[subprocess.Popen[str], int]:
    """A process that prints its address, and the port."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    line = process.stdout.readline().split()[0]
    return process, int(line.rstrip("/").removesuffix("/v1").rsplit(":", 1)[1])


def run(clients: int, seconds: float) -> tuple[Counter[str], list[float]]:
    """Counts of what happened, and the seconds of each completion."""
    with tempfile.TemporaryDirectory() as folder:
        language.save(Path(folder), " ".join([QUESTION, *DOCUMENTS, *WORDS, "Answer the help with these documents"]))
        upstream, port = started([sys.executable, "-c", UPSTREAM])
        command = [sys.executable, "-m", "whyformer", "proxy", "--server", f"http://127.0.0.1:{port}"]
        proxy, port = started([*command, "--model", folder, "--port", "0"])
        try:
            warm = Client(port, clients, time.monotonic() + 0.001)  # the first explanation imports much
            warm.start()
            warm.join()
            asking = [Client(port, number, time.monotonic() + seconds) for number in range(clients)]
            for client in asking:
                client.start()
            for client in asking:
                client.join()
        finally:
            for process in (proxy, upstream):
                process.send_signal(2)
            for process in (proxy, upstream):
                process.wait(60)
    counts: Counter[str] = Counter()
    for client in asking:
        counts += client.counts
    return counts, [second for client in asking for second in client.seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    how = parser.parse_args()
    print(machine(), flush=True)
    counts, seconds = run(how.clients, how.seconds)
    lost = sum(count for name, count in counts.items() if name.startswith("lost"))
    print(
        f"{how.clients} clients, {how.seconds:.0f} s: {counts['completions']} completions, {lost} lost, "
        f"{counts['altered']} altered"
    )
    for name, count in sorted(counts.items()):
        if name.startswith(("lost", "not explained", "explained")):
            print(f"  {name}: {count}")
    if len(seconds) > 1:
        cuts = statistics.quantiles(seconds, n=20)
        print(f"seconds per completion: median {cuts[9]:.2f}, 95 % within {cuts[18]:.2f}")


if __name__ == "__main__":
    main()
