"""Both packages as they would be published, and environments that hold them and what they declare to need, alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from functools import cache
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
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


def closure(
    wheels: dict[str, Path], extras: str, others: Sequence[str] = ()
) -> tuple[dict[str, Distribution], set[str]]:
    """What ``pip install 'whyformer[extras]' others`` would install: distributions that are here, and which wheels."""
    needed: dict[str, Distribution] = {}
    ours: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(f"whyformer[{extras}]" if extras else "whyformer"), *map(Requirement, others)]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in wheels:
            ours.add(name)
            lines = metadata(wheels[name]).get_all("Requires-Dist") or []
        else:
            needed[name] = distribution(wanted.name)
            here = needed[name].version
            assert wanted.specifier.contains(here, prereleases=True), f"{wanted}, and {here} is here"
            lines = needed[name].requires or []
        for extra in ("", *wanted.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            parts = [Requirement(line) for line in lines]
            waiting += [part for part in parts if part.marker is None or part.marker.evaluate({"extra": extra})]
    return needed, ours


@dataclass(frozen=True)
class Environment:
    """A Python with some packages and no others."""

    folder: Path

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Its python, away from the repository and without its paths."""
        call = [str(self.folder / "bin" / "python"), *arguments]
        done = subprocess.run(call, cwd=self.folder, env=self.variables(), capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def variables(self) -> dict[str, str]:
        """Environment variables, without the repository's paths."""
        kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}}
        return kept | {"COLUMNS": "80"}

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


def environment(
    folder: Path, wheels: dict[str, Path], ours: dict[str, Distribution], extras: str, others: Sequence[str] = ()
) -> Environment:
    """``ours``: the wheels, installed once for all environments, so that they are compiled once."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    needed, names = closure(wheels, extras, others)
    for part in [*needed.values(), *(ours[name] for name in names)]:
        for entry in {Path(file).parts[0] for file in part.files or [] if not str(file).startswith("..")}:
            source, link = Path(str(part.locate_file(entry))), site / entry
            if source.exists() and not link.exists() and entry not in {"__pycache__", "bin"}:
                link.symlink_to(source)
    return Environment(folder)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: built(at, "wheel", tmp_path_factory.mktemp("wheel")) for name, at in PROJECTS.items()}


@pytest.fixture(scope="session")
def ours(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Distribution]:
    return installed(wheels, tmp_path_factory.mktemp("installed"))
