"""Interleaved timing: every contender runs in every round, so that machine load hits all of them alike."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def machine(device: str = "cpu") -> str:
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    words = f"torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores, load {load}"
    return words + (f", {torch.cuda.get_device_name(device)}" if device.startswith("cuda") else "")


Contenders = dict[str, Callable[[], object]]


def rounds_of(
    contenders: Contenders, rounds: int, clock: Callable[[], float] = time.perf_counter, before: int = 0
) -> dict[str, list[float]]:
    """Seconds of every contender in every round, after one round of warm-up.

    Garbage is collected between rounds: in them nobody pays for that of others, and nobody begins with empty caches.
    before: calls of a contender that are not timed, just before the one that is: in a loop, nobody finds a processor's
    caches filled by somebody else's work, which matters where milliseconds do.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        gc.collect()
        gc.disable()
        try:
            for name, run in contenders.items():
                for _ in range(before):
                    run()
                start = clock()
                run()
                if number:
                    times[name].append(clock() - start)
        finally:
            gc.enable()
    return times


def finished(road: Callable[[], Any], device: str) -> Callable[[], Any]:
    """On a GPU: until it has done what was asked of it."""

    def run() -> Any:
        out = road()
        torch.cuda.synchronize()
        return out

    return road if device == "cpu" else run


def fastest(contenders: Contenders, rounds: int, before: int = 0) -> dict[str, float]:
    """The fastest round of each: what else the machine does can only add to it."""
    return {name: min(values) for name, values in rounds_of(contenders, rounds, before=before).items()}


def peak_megabytes(module: str, *arguments: str) -> float:
    """Growth of the peak resident size while a fresh process runs ``python -m module arguments``."""
    out = subprocess.run([sys.executable, "-m", module, *arguments], check=True, capture_output=True, text=True)
    return float(out.stdout.strip().splitlines()[-1])


def growth(run: Callable[[], object]) -> float:
    """Megabytes by which the resident size rose at most while ``run`` ran, sampled every millisecond."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # memory that was used before and freed would hide the growth
    start, peak, done = _resident(), _resident(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, _resident())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run()
    finally:
        done.set()
        watcher.join()
    return peak - start


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20
