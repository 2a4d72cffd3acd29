"""One environment per peer: versions in one place, made with venv and pip, and run as processes.

An environment sees the packages of the Python that makes it (a .pth file), so torch is shared and not copied. What a
peer needs in another version is installed in its own environment, and comes first there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path.home() / ".cache" / "whyformer-peers"
MADE = "made.json"  # what was installed; an environment without it was interrupted


@dataclass(frozen=True)
class Peer:
    """A library, its pinned packages, and the module that is imported."""

    name: str
    requirements: tuple[str, ...]
    module: str


VISION = "torchvision==0.28.0"  # the one for torch 2.13, which constraints.txt pins
OLDER = "transformers==4.52.4"  # the last one that LXT names

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("captum", ("captum==0.9.0",), "captum"),
        Peer("shap", ("shap==0.51.0",), "shap"),
        Peer("inseq", ("inseq==0.7.1",), "inseq"),
        Peer("lxt", ("lxt==2.1", VISION, OLDER), "lxt"),
        Peer("interpreto", ("interpreto==0.5.2",), "interpreto"),
        Peer("flashtrace", ("flashtrace==0.1.1",), "flashtrace"),
        Peer("context-cite", ("context-cite==0.0.4",), "context_cite"),
        Peer("at2", ("at2==0.0.1", "context-cite==0.0.4"), "at2"),
        Peer("bertviz", ("bertviz==1.4.1",), "bertviz"),
        Peer("quantus", ("quantus==0.6.0",), "quantus"),
        Peer("pytorch-grad-cam", ("grad-cam==1.5.7", VISION), "pytorch_grad_cam"),
        Peer("transformers-interpret", ("transformers-interpret==0.10.0",), "transformers_interpret"),
        Peer("shapiq", ("shapiq==1.4.1",), "shapiq"),
        Peer("zennit", ("zennit==0.5.1", VISION), "zennit"),
    )
}


class NotMade(Exception):
    """pip could not install a peer."""


def torch_pin() -> str:
    """The torch of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def python_of(folder: Path) -> Path:
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def made(peer: Peer, folder: Path) -> Path:
    """Return the Python of a peer's environment, which is made if it is missing or was made for other versions."""
    home = folder / peer.name
    wanted = [torch_pin(), *peer.requirements]
    note = home / MADE
    if note.exists() and json.loads(note.read_text(encoding="utf-8")) == wanted:
        return python_of(home)
    venv.create(home, clear=True, with_pip=False)
    inside = sysconfig.get_path("purelib", vars={"base": str(home)})
    (Path(inside) / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    python = python_of(home)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotMade("; ".join(errors) or done.stderr[-300:])
    note.write_text(json.dumps(wanted), encoding="utf-8")
    return python


def variables() -> dict[str, str]:
    """The environment variables of a worker: whyformer, its models and the benches of this tree are importable."""
    own = [ROOT / "src", ROOT / "models" / "src", ROOT]
    names = os.pathsep.join([*map(str, own), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": names, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def run(python: Path | str, arguments: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a module in an environment and return what it printed."""
    command = [str(python), "-m", *arguments]
    return subprocess.run(
        command, env=variables(), cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )


def here() -> list[str]:
    """Names of peers that the running Python can import."""
    from importlib.util import find_spec

    return [name for name, peer in PEERS.items() if find_spec(peer.module) is not None]


if __name__ == "__main__":
    for each in PEERS.values():
        print(each.name, flush=True)
        try:
            print("  ", made(each, Path(sys.argv[1])), flush=True)
        except NotMade as error:
            print("  ", error, flush=True)
