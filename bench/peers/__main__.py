"""Ask other libraries and whyformer the same questions, each library in an environment of its own.

    python -m bench.peers --folder smol               # makes environments, asks, writes data and page
    python -m bench.peers --peer captum zennit        # only these; others keep their rows
    python -m bench.peers --page                      # print the page anew from the data
    python -m bench.peers --here --device cuda --data gpu.json    # peers of this Python, no environments

A peer whose row is there for the same versions is not asked again (``--again`` asks it). A peer that fails is a row
with its error. ``--folder``: SmolLM2, written by ``python -m bench.smollm2 FOLDER``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from bench.peers.environments import FOLDER, PEERS, ROOT, NotMade, Peer, here, made, run, torch_pin
from bench.peers.page import page
from bench.peers.questions import Row
from bench.stamp import commit, machine, versions

DATA = ROOT / "docs" / "reports" / "peers.json"
LONGEST = 1500.0  # seconds for a peer


def asked(peer: Peer, python: Path | str, given: argparse.Namespace) -> Row:
    """Run the worker of a peer, and return its row; what it had before a crash is kept."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        arguments = ["bench.peers.worker", peer.name, "--out", str(out), "--device", given.device]
        arguments += ["--seconds", str(given.seconds), "--threads", str(given.threads)]
        if given.folder:
            arguments += ["--folder", str(given.folder.resolve())]
        try:
            done = run(python, arguments, LONGEST)
            ended = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]
        except subprocess.TimeoutExpired:
            ended = f"not finished after {LONGEST:.0f} s"
        row: Row = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    if ended:
        row["failed"] = ended[:300]
    return row


def one(peer: Peer, given: argparse.Namespace, before: Row) -> Row:
    """Make the environment of a peer and ask it; a part that is not asked keeps what is there."""
    row: Row = {"questions": [], "attempts": []} | before | {"pins": [torch_pin(), *peer.requirements]}
    row.pop("failed", None)
    try:
        python: Path | str = sys.executable if given.here else made(peer, given.environments)
    except NotMade as error:
        return row | {"failed": f"not installed: {error}"}
    started = time.perf_counter()
    row |= asked(peer, python, given)
    return row | {"date": date.today().isoformat(), "seconds": time.perf_counter() - started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", nargs="+", choices=list(PEERS), metavar="NAME", help="only these")
    parser.add_argument("--environments", type=Path, default=FOLDER, help="where environments are made")
    parser.add_argument("--folder", type=Path, help="of SmolLM2")
    parser.add_argument("--data", type=Path, default=DATA, help="rows; the page is written beside it")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="for the rounds of a question")
    parser.add_argument("--here", action="store_true", help="peers that this Python can import, without environments")
    parser.add_argument("--again", action="store_true", help="also peers whose row is there")
    parser.add_argument("--page", action="store_true", help="only write the page")
    given = parser.parse_args()
    data: Row = json.loads(given.data.read_text(encoding="utf-8")) if given.data.exists() else {"peers": {}}
    names = given.peer or (here() if given.here else list(PEERS))
    for number, name in enumerate(() if given.page else names, 1):
        before = data["peers"].get(name, {})
        if before.get("done") and before["pins"] == [torch_pin(), *PEERS[name].requirements] and not given.again:
            print(f"{number}/{len(names)} {name}: there since {before['date']}", flush=True)
            continue
        print(f"{number}/{len(names)} {name}: {', '.join(PEERS[name].requirements)} …", flush=True)
        data["peers"][name] = row = one(PEERS[name], given, before)
        data |= {"machine": machine(given.device), "device": given.device, "threads": given.threads}
        data |= {"commit": commit(), "versions": versions("torch")}
        given.data.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        answers = row.get("questions", [])
        failed = [question for question in answers if "failed" in question]
        print(f"   {len(answers) - len(failed)} of {len(answers)} questions {row.get('failed', '')}", flush=True)
        for question in failed:
            print(f"   {question['about']}: {question['failed']}", flush=True)
    beside = given.data.with_name(f"{given.data.stem}_gpu.json")  # what another machine wrote
    gpu = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else None
    given.data.with_suffix(".md").write_text(page(data, gpu), encoding="utf-8")
    print(given.data.with_suffix(".md"))


if __name__ == "__main__":
    main()
