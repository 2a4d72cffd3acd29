"""Does the server hold? Many clients ask the shipped text model at once: errors, waiting times, memory.

    python -m bench.serve [--clients 20] [--seconds 60]

The server is a process of its own, started as the command does. Each client types (a prediction), explains, reads the
result again by its link and begins anew, without a pause. Memory is that of the server's process, every second, after
a fifth of the time has passed: by then everything is loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from bench.timing import machine

SERVER = """
import sys
from whyformer import demo
from whyformer.verbs import Explainer
from whyformer.serve.app import Served
from whyformer.serve.jobs import Jobs
from whyformer.serve.models import Models, ServedModel
from whyformer.serve.app import run
from whyformer.serve.store import Store
model = ServedModel("sentiment", "text", Explainer(*demo.load_sentiment()), demo.SENTENCES)
run(Served(Models([model]), Store(sys.argv[1]), Jobs()), 0, lambda at: print(at, flush=True))
"""
WORDS = "I cannot wait for the next film of this dull great boring lovely man who never said a word".split()


def asked(at: str, path: str, question: Any = None) -> tuple[int, Any]:
    body = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(at + path, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


class Client(threading.Thread):
    """Asks until the time is over."""

    def __init__(self, at: str, number: int, until: float) -> None:
        super().__init__()
        self.at, self.number, self.until = at, number, until
        self.seconds: dict[str, list[float]] = {"predict": [], "explain": [], "open": []}
        self.wrong: list[str] = []

    def run(self) -> None:
        turn = 0
        while time.monotonic() < self.until:
            turn += 1
            start = (7 * turn + self.number) % len(WORDS)
            text = " ".join((WORDS + WORDS)[start : start + 6 + self.number % 5])
            question = {"model": "sentiment", "input": {"text": text}}
            self.timed("predict", "/api/predict", question)
            told = self.timed("explain", "/api/explain", question | {"wait": 60})
            if told is not None:
                self.timed("open", f"/api/results/{told['id']}")

    def timed(self, what: str, path: str, question: Any = None) -> Any:
        begun = time.perf_counter()
        try:
            status, told = asked(self.at, path, question)
        except OSError as error:
            self.wrong.append(f"{what}: {error}")
            return None
        self.seconds[what].append(time.perf_counter() - begun)
        if status != 200:
            self.wrong.append(f"{what}: {status} {told.get('error')}")
            return None
        return told


def resident_of(process: int) -> float:
    """Megabytes."""
    fields = Path(f"/proc/{process}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    how = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SERVER, str(Path(folder) / "store.sqlite")]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert server.stdout is not None
        at = server.stdout.readline().strip().rstrip("/")
        print(machine(), flush=True)
        begun = time.perf_counter()
        question = {"model": "sentiment", "input": {"text": "I like the movie"}, "wait": 60}
        while True:  # until it listens
            try:
                asked(at, "/api/explain", question)
                break
            except OSError:
                time.sleep(0.05)
        print(f"first explanation {time.perf_counter() - begun:.2f} s after the address was told")
        asked(at, "/api/methods?model=sentiment&wait=60")  # the rehearsal is over
        start = time.monotonic()
        clients = [Client(at, number, start + how.seconds) for number in range(how.clients)]
        for client in clients:
            client.start()
        memory = []
        while any(client.is_alive() for client in clients):
            memory.append((time.monotonic() - start, resident_of(server.pid)))
            time.sleep(1)
        took = time.monotonic() - start
        wrong = Counter(words for client in clients for words in client.wrong)
        print(f"{how.clients} clients, {took:.0f} s: {sum(wrong.values())} errors {dict(wrong.most_common(3))}")
        for what in ("predict", "explain", "open"):
            times = sorted(t for client in clients for t in client.seconds[what])
            if len(times) > 1:
                cuts = statistics.quantiles(times, n=20)
                rate = len(times) / took
                print(f"{what:8} {len(times):6} ({rate:.1f}/s)  median {cuts[9]:.2f} s, 95 % within {cuts[18]:.2f} s")
        later = [megabytes for at_time, megabytes in memory if at_time > how.seconds / 5]
        if later:
            begin, end, most = later[0], later[-1], max(later)
            print(f"memory {begin:.0f} MB at {how.seconds / 5:.0f} s, {end:.0f} MB at the end, at most {most:.0f} MB")
        server.send_signal(2)
        print(f"ends with {server.wait(60)} on Ctrl-C")


if __name__ == "__main__":
    main()
