"""Does anything give way? Server, proxy and jobs are attacked for minutes, beside users who must not notice.

    python -m bench.strain [--seconds 600]

Three processes are under strain at once: the server (a user explains and reads by links; silent connections flood it,
and a slow client sends a request byte by byte), the proxy (its upstream replies with junk, bombs, endless and broken
bodies, beside whole ones) and jobs (in folders that somebody planted and damaged, on a disk that is full again and
again). Each user's reply is checked, each row has to be there once, and the memory, files and threads of each process
have to stay as they are after the first third of the time.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import http.server
import json
import os
import random
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import whyformer as wf
from bench.timing import machine
from tests.jobs.sentences import HOW, numbers, sentences
from tests.support import folders, language
from whyformer.errors import BadInput, JobStopped

FLAT = 0.05  # of memory, around its median in the second third
FLOOD, PAUSE = 300, 3.0  # silent connections, seconds between two floods
LOST: Counter[str] = Counter()  # what must not happen
SEEN: Counter[str] = Counter()  # what did
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
QUESTION = "what is the capital of france ?"
DOCUMENTS = ["the capital of france is paris . rome is big .", "a cat sat on the mat . the dog ran home ."]
WORDS = "it is paris . the cat sat on the mat .".split()


# A user of the server


def asked(at: str, path: str, question: Any = None) -> tuple[int, Any]:
    body = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(at + path, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def served(at: str, until: float) -> None:
    """A prediction, an explanation and the same again by its link, without a pause."""
    turn = 0
    while time.time() < until:
        turn += 1
        text = " ".join((WORDS + WORDS)[turn % len(WORDS) :][:6])
        question = {"model": "sentiment", "input": {"text": text}, "wait": 60}
        _timed(at, "/api/predict", question)
        told = _timed(at, "/api/explain", question)
        if told is not None:
            _timed(at, f"/api/results/{told['id']}")


def _timed(at: str, path: str, question: Any = None) -> Any:
    try:
        status, told = asked(at, path, question)
    except OSError as error:
        LOST[f"{path}: {error}"] += 1
        return None
    SEEN[path.split("/")[2]] += 1
    if status != 200:
        LOST[f"{path}: {status} {told.get('error')}"] += 1
        return None
    return told


# Jobs, in a process of their own


def jobs(folder: Path, until: float) -> None:
    """One cycle after the other: planted, damaged, on a full disk, and resumed; each row once, with the same bits."""
    model = wf.Explainer(folders.bert(), folders.tokenizer(folder / "tokenizer"))
    rows, undisturbed = sentences(24), folder / "undisturbed"
    wf.explain_dataset(model, rows, out=undisturbed, **HOW)
    expected, most = numbers(undisturbed), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    target, draw = folder / "target", random.Random(0)
    while time.time() < until:
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        target.write_text("mine")
        (out / draw.choice(["manifest.json.unfinished", "lock", "commits.jsonl", "explanations"])).symlink_to(target)
        try:
            wf.explain_dataset(model, rows, out=out, **HOW)
            LOST["a planted folder was accepted"] += 1
        except BadInput:
            SEEN["planted folders refused"] += 1
        LOST["a target was overwritten"] += target.read_text() != "mine"
        shutil.rmtree(out)
        resource.setrlimit(resource.RLIMIT_FSIZE, (draw.choice([5_000, 15_000]), most))  # the disk is full
        try:
            wf.explain_dataset(model, rows, out=out, **HOW)
        except JobStopped:
            SEEN["full disks"] += 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        for part in sorted((out / "explanations").glob("*"))[:1] if (out / "explanations").exists() else ():
            part.write_bytes(part.read_bytes()[: draw.randrange(100)])
            SEEN["damaged parts"] += 1
        wf.explain_dataset(model, rows, out=out, **HOW)
        LOST["rows of a job"] += numbers(out) != expected
        SEEN["jobs"] += 1
    print(json.dumps([LOST, SEEN]), flush=True)


# The upstream of the proxy


def whole(seed: int) -> bytes:
    """The body of a completion, with spaces that another writer of JSON would not keep."""
    text = " ".join([*WORDS, hashlib.blake2b(str(seed).encode(), digest_size=4).hexdigest(), "."])
    return (
        f'{{ "id": "c-{seed}",  "object": "chat.completion", "model":"tiny", "choices": [ {{"index": 0, "message": '
        f'{{"role": "assistant", "content": "{text}"}}, "finish_reason": "stop"}}] }}\n'
    ).encode()


def parted(body: bytes) -> tuple[bytes, dict[str, Any]]:
    """What arrived without the extra field, and the field."""
    head, text = body.split(b',"whyformer":')
    added, end = json.JSONDecoder().raw_decode(text.decode())
    return head + text.decode()[end:].encode(), added


class Junk(http.server.BaseHTTPRequestHandler):
    """Replies as the request's seed says: every second one is whole, the others are junk of eight kinds."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        seed = body["seed"]
        noise = random.Random(seed).randbytes(20_000)
        gzipped = {"content-encoding": "gzip"}
        kinds: list[tuple[int, bytes, dict[str, str], bool]] = [
            (200, noise, {}, True),
            (200, gzip.compress(bytes(30_000_000)), gzipped, True),
            (200, b'{"choices":' + b"[" * 50_000, {}, True),
            (200, whole(seed)[:50], {}, False),  # cut off
            (500, b"Bearer secret" + noise, {}, True),
            (200, b'{"choices": [{"message": {"content": "' + b"x" * 12_000_000 + b'"}}]}', {}, True),
            (204, b"", {"set-cookie": "session=other"}, True),
            (200, b"data: {no\n\ndata: [DONE]\n\n", {"content-type": "text/event-stream"}, True),
        ]
        plain = (200, whole(seed), {}, True)
        status, reply, headers, complete = plain if seed % 2 else kinds[seed // 2 % len(kinds)]
        self.send_response(status)
        for name, value in ({"content-type": "application/json"} | headers).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("content-length", str(len(reply) + (0 if complete else 500)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(reply)
        self.close_connection = not complete

    def log_message(self, *words: Any) -> None:
        pass


def through_the_proxy(port: int, until: float) -> None:
    """A user behind the proxy: whole replies arrive unchanged, junk as an error or as it came; nothing hangs."""
    seed = 0
    while time.time() < until:
        seed += 1
        content = {"messages": [{"role": "user", "content": QUESTION}], "seed": seed}
        content["whyformer"] = {"cite": True, "documents": DOCUMENTS}
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(
                "POST", "/v1/chat/completions", json.dumps(content), {"content-type": "application/json"}
            )
            reply = connection.getresponse()
            cookie, body = reply.getheader("set-cookie"), reply.read()
        except (OSError, HTTPException) as error:
            if seed % 2 or isinstance(error, TimeoutError):
                LOST[f"proxy: {type(error).__name__}"] += 1
            SEEN["broken replies"] += 1
            continue
        finally:
            connection.close()
        LOST["a cookie passed on"] += cookie is not None
        if not seed % 2:
            SEEN["junk replies"] += 1
            continue
        SEEN["completions"] += 1
        try:
            LOST["altered completions"] += reply.status != 200 or parted(body)[0] != whole(seed)
        except ValueError:
            LOST["completions without a field"] += 1


def silent(port: int, until: float) -> None:
    """A flood of connections that send nothing, and a client that sends a request byte by byte."""
    while time.time() < until:
        crowd = []
        for _ in range(FLOOD):
            with suppress(OSError):
                crowd.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        SEEN["silent connections"] += len(crowd)
        begun = time.time()
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as slow:
            for byte in b"GET /api/models HTTP/1.1\r\nHost: x" * 9:
                slow.send(bytes([byte]))
                time.sleep(PAUSE / 20)
                if time.time() - begun > PAUSE:
                    break
            SEEN["slow requests"] += 1
        for each in crowd:
            each.close()


def started(command: list[str]) -> tuple[subprocess.Popen[str], int]:
    """A process that prints its address, and the port."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    line = process.stdout.readline().split()[0]
    return process, int(line.rstrip("/").removesuffix("/v1").rsplit(":", 1)[1])


def figures(process: int) -> dict[str, float]:
    """Memory in MB, open files and threads."""
    proc = Path(f"/proc/{process}")
    files, threads = len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir()))
    pages = int((proc / "statm").read_text().split()[1])
    return {"MB": pages * os.sysconf("SC_PAGE_SIZE") / 2**20, "files": files, "threads": threads}


def watched(processes: dict[str, int], until: float) -> dict[str, list[dict[str, float]]]:
    seen: dict[str, list[dict[str, float]]] = defaultdict(list)
    while time.time() < until:
        for name, process in processes.items():
            with suppress(OSError):
                seen[name].append(figures(process))
        time.sleep(2)
    return seen


def report(seen: dict[str, list[dict[str, float]]]) -> bool:
    """Print the second third beside the last; whether memory is flat, and no file or thread too many."""
    flat = True
    for name, every in seen.items():
        third = len(every) // 3
        middle, last = every[third : 2 * third], every[2 * third :]
        typical = {
            kind: [statistics.median(each[kind] for each in part) for part in (middle, last)] for kind in last[0]
        }
        grown = typical["MB"][1] / typical["MB"][0] - 1
        flat = flat and abs(grown) <= FLAT and typical["threads"][1] <= typical["threads"][0] + 2
        told = ", ".join(f"{kind} {before:.0f} → {after:.0f}" for kind, (before, after) in typical.items())
        print(f"{name:7} median of the second and of the last third: {told} ({grown:+.1%} memory)", flush=True)
    return flat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--jobs", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    how = parser.parse_args()
    if how.jobs is not None:
        jobs(how.jobs, how.until)
        return
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        language.save(
            folder / "model", " ".join([QUESTION, *DOCUMENTS, *WORDS, "Answer the help with these documents"])
        )
        upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Junk)
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        server, port = started([sys.executable, "-c", SERVER, str(folder / "store.sqlite")])
        command = [sys.executable, "-m", "whyformer", "proxy", "--port", "0", "--model", str(folder / "model")]
        proxy, proxy_port = started([*command, "--server", f"http://127.0.0.1:{upstream.server_port}"])
        until = time.time() + how.seconds
        again = [sys.executable, "-m", "bench.strain", "--jobs", str(folder), "--until", str(until)]
        worker = subprocess.Popen(again, stdout=subprocess.PIPE, text=True)
        threads = [threading.Thread(target=silent, args=(port, until))]
        threads += [threading.Thread(target=served, args=(f"http://127.0.0.1:{port}", until))]
        threads += [threading.Thread(target=through_the_proxy, args=(proxy_port, until))]
        for thread in threads:
            thread.start()
        seen = watched({"server": server.pid, "proxy": proxy.pid, "jobs": worker.pid}, until - 1)
        for thread in threads:
            thread.join()
        lost, happened = json.loads(worker.communicate(timeout=120)[0])
        LOST.update(lost)
        SEEN.update(happened)
        listed = asked(f"http://127.0.0.1:{port}", "/api/models")[0]
        LOST["server at the end"] += listed != 200
        begun = time.time()
        for process in (server, proxy):
            process.terminate()
        for process in (server, proxy):
            process.wait(30)
        print(f"both end {time.time() - begun:.1f} s after SIGTERM", flush=True)
        upstream.shutdown()
    print(f"{how.seconds:.0f} s: " + ", ".join(f"{count} {what}" for what, count in SEEN.items()))
    flat = report(seen)
    wrong = {what: count for what, count in LOST.items() if count}
    print(f"lost or wrong: {wrong or 'nothing'}")
    assert flat and not wrong


if __name__ == "__main__":
    main()
