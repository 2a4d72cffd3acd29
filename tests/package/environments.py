"""Both packages as they would be published, and environments that hold them and what they declare to need, alone.

A real install would download gigabytes. Instead the libraries that a wheel and its extras name, and what those name in
turn, are links to those that the tests run with: a library that is used and not declared is missing there, as it would
be on a user's machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from functools import cache
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
PROJECTS = {"whyformer": REPOSITORY, "whyformer-models": REPOSITORY / "models"}


def built(project: Path, kind: str, out: Path) -> Path:
    """The wheel or sdist of a project, by its own build backend."""
    call = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    subprocess.run(call, cwd=project, check=True, capture_output=True)
    (made,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@cache
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def closure(wheels: dict[str, Path], extras: str) -> dict[str, Distribution]:
    """What ``pip install 'whyformer[extras]'`` would install beside the wheels, by name."""
    needed: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(f"whyformer[{extras}]" if extras else "whyformer")]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        lines = (metadata(wheels[name]).get_all("Requires-Dist") if name in wheels else _requires(needed, wanted)) or []
        for extra in ("", *wanted.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            parts = [Requirement(line) for line in lines]
            waiting += [part for part in parts if part.marker is None or part.marker.evaluate({"extra": extra})]
    return needed


def _requires(needed: dict[str, Distribution], wanted: Requirement) -> list[str]:
    found = distribution(wanted.name)
    assert wanted.specifier.contains(found.version, prereleases=True), f"{wanted}, and {found.version} is here"
    needed[canonicalize_name(wanted.name)] = found
    return found.requires or []


def wants(wheels: dict[str, Path], extras: str) -> set[str]:
    """The wheels of this repository that a set of extras brings."""
    lines = [Requirement(line) for line in metadata(wheels["whyformer"]).get_all("Requires-Dist") or []]
    chosen, before = set(filter(None, extras.split(","))), set()
    names = {"whyformer"}
    while chosen != before:
        before = set(chosen)
        for line in lines:
            if line.marker is None or any(line.marker.evaluate({"extra": extra}) for extra in chosen):
                names.add(canonicalize_name(line.name))
                chosen |= line.extras
    return names & set(wheels)


@dataclass(frozen=True)
class Environment:
    """A Python with some packages and no others."""

    folder: Path

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Its python, away from the repository and without its paths."""
        kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}}
        call = [str(self.folder / "bin" / "python"), *arguments]
        done = subprocess.run(
            call, cwd=self.folder, env=kept | {"COLUMNS": "80"}, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def python(self, code: str) -> object:
        """What the code prints last, as JSON."""
        return json.loads(self.run("-c", code).stdout.splitlines()[-1])


def installed(wheels: dict[str, Path], folder: Path) -> dict[str, Distribution]:
    """Each wheel as pip installs it, in a folder of its own."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    for name, wheel in wheels.items():
        call = [*pip, "--disable-pip-version-check", "--target", str(folder / name), str(wheel)]
        subprocess.run(call, check=True, capture_output=True)
    return {name: next(iter(distributions(path=[str(folder / name)]))) for name in wheels}


def environment(folder: Path, wheels: dict[str, Path], ours: dict[str, Distribution], extras: str) -> Environment:
    """``ours``: the wheels, installed once for all environments, so that they are compiled once."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for part in [*closure(wheels, extras).values(), *(ours[name] for name in wants(wheels, extras))]:
        for entry in {Path(file).parts[0] for file in part.files or [] if not str(file).startswith("..")}:
            source, link = Path(str(part.locate_file(entry))), site / entry
            if source.exists() and not link.exists() and entry not in {"__pycache__", "bin"}:
                link.symlink_to(source)
    return Environment(folder)
