"""The last line of a report, which is made and not typed: date, commit, machine, versions, command.

    python -m bench.stamp docs/reports/speed.md 'python -m bench.engine' [--device cuda]

Writes the line of today in the place of the one that the page ends with. Run it where the figures were made.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINE = re.compile(r"^\*Made \d{4}-\d\d-\d\d at commit [0-9a-f]{8} \(.+\): `.+`\*$")


def stamp(when: str, commit: str, machine: str, versions: str, command: str) -> str:
    """Return the line of a report."""
    return f"*Made {when} at commit {commit} ({', '.join(part for part in (machine, versions) if part)}): `{command}`*"


def commit() -> str:
    words = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def machine(device: str = "cpu") -> str:
    """The processor or GPU in words."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} CPU cores ({names[0] if names else platform.machine()})"


def versions(*packages: str) -> str:
    return ", ".join(f"{name} {version(name).split('+')[0]}" for name in packages)


def stamped(text: str, line: str) -> str:
    """The page with this last line, in the place of an older one."""
    lines = text.rstrip().split("\n")
    return "\n".join([*(lines[:-1] if LINE.match(lines[-1]) else [*lines, ""]), line]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("command", help="what made the figures")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    today = date.today().isoformat()
    line = stamp(today, commit(), machine(given.device), versions("torch", "transformers"), given.command)
    given.page.write_text(stamped(given.page.read_text(encoding="utf-8"), line), encoding="utf-8")
    print(line)


if __name__ == "__main__":
    main()
