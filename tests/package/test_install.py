"""What is published: its size, what its source archive makes, and that it works with what it declares alone."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from importlib.metadata import Distribution
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import folders
from tests.support.packages import PROJECTS, REPOSITORY, built, contents, environment, metadata
from whyformer.errors import LIBRARIES

LARGEST = 1_300_000  # bytes of the wheel, which is code alone: 3 MB of it, packed
APART = {"ray", "notebook", "saint", "otel"}  # extras that are no part of all, each for its reason in pyproject.toml


def test_the_package_is_small_and_the_models_are_whole(wheels: dict[str, Path]) -> None:
    assert wheels["whyformer"].stat().st_size < LARGEST
    inside = contents(wheels["whyformer"])
    assert not [name for name in inside if name.endswith((".safetensors", ".npz", ".csv"))]
    files = {"py.typed", "views/html/whyformer.js", "views/html/page.css", "serve/serve.css"}
    assert {f"whyformer/{name}" for name in files} <= set(inside)
    source = PROJECTS["whyformer-models"] / "src"
    files = {
        p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    assert {name for name in contents(wheels["whyformer-models"]) if ".dist-info" not in name} == files
    for name in ("sentiment", "pets", "textures", "adult"):
        assert {f"whyformer_models/{name}/{part}" for part in ("model.safetensors", "MODEL_CARD.md")} <= files


def test_both_say_what_they_are(wheels: dict[str, Path]) -> None:
    licence = (REPOSITORY / "LICENSE").read_bytes()
    for name, wheel in wheels.items():
        about = metadata(wheel)
        assert (about["Name"], about["License-Expression"], about["Requires-Python"]) == (name, "Apache-2.0", ">=3.10")
        assert [data for path, data in contents(wheel).items() if path.endswith("licenses/LICENSE")] == [licence]
        assert about["Description-Content-Type"] == "text/markdown" and len(str(about.get_payload())) > 500


def test_the_command_is_installed(ours: dict[str, Distribution]) -> None:
    (command,) = ours["whyformer"].entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("whyformer", "whyformer.__main__:main")


def test_the_versions_of_both_go_together(wheels: dict[str, Path]) -> None:
    """New weights change what documents and tests quote: they come with a new minor version of both."""
    versions = {name: metadata(wheel)["Version"] for name, wheel in wheels.items()}
    assert versions["whyformer"].split(".")[:2] == versions["whyformer-models"].split(".")[:2]
    lines = [Requirement(line) for line in metadata(wheels["whyformer"]).get_all("Requires-Dist") or []]
    ties = [line.specifier for line in lines if canonicalize_name(line.name) == "whyformer-models"]
    major, minor = map(int, versions["whyformer"].split(".")[:2])
    for tie in ties:
        assert tie.contains(versions["whyformer-models"]) and not tie.contains(f"{major}.{minor + 1}.0")
    assert ties


@pytest.mark.parametrize("name", PROJECTS)
def test_the_source_archive_makes_the_same_wheel(name: str, wheels: dict[str, Path], tmp_path: Path) -> None:
    archive = built(PROJECTS[name], "sdist", tmp_path / "sdist")
    with tarfile.open(archive) as opened:
        assert not [part for part in opened.getnames() if "/tests/" in part or "/.git/" in part]
        opened.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    again = contents(built(unpacked, "wheel", tmp_path / "again"))
    assert again == contents(wheels[name])


# Where there is nothing but what the wheel declares


CORE = """
import json, torch, whyformer as wf
from torch import nn
from whyformer.errors import MissingExtra

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 3)

    def forward(self, vectors):
        return self.head(self.encoder(vectors)[:, 0])

model, vectors = Classifier().eval(), torch.randn(2, 5, 16)
first, second = wf.explain(model, vectors)
first.show()
first.save("x.html"), first.save("x.json"), first.save("x.npz")
assert wf.load("x.json").ranked() == first.ranked()
said = {}
asks = {
    "plot": lambda: first.save("x.png"),
    "tabular": lambda: first.to_frame(),
    "shap": lambda: first.to_shap(),
    "hf,models": lambda: wf.demo.load_sentiment(),
    "eval": lambda: wf.tcav(model, layer=0, concepts={"a": [1]}, random_sets=[[1]], class_inputs=vectors, target=0),
    "batch": lambda: wf.explain_dataset(model, [vectors], out="out"),
    "web": lambda: __import__("whyformer.serve"),
}
for extra, ask in asks.items():
    try:
        ask()
    except MissingExtra as error:
        said[extra] = str(error).rpartition(": ")[2]
print(json.dumps([first.scores.tolist(), said]))
"""

HF = """
import json, sys, whyformer as wf
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from whyformer.errors import MissingExtra

model = AutoModelForSequenceClassification.from_pretrained("bert").eval()
why = wf.explain(model, "the movie was not good", processor=AutoTokenizer.from_pretrained("bert"))
why.save("x.html")
said = []
for ask in (lambda: why.save("x.png"), why.to_frame, wf.demo.load_sentiment):
    try:
        ask()
    except MissingExtra as error:
        said.append(str(error).rpartition(": ")[2])
print(json.dumps([[unit for unit, _ in why.ranked(specials=False)], said]))
"""

ALL = """
import json, whyformer as wf, whyformer.serve.app
from whyformer.demo.census import adult_rows
from whyformer.errors import LIBRARIES, installed

model, tokenizer = wf.demo.load_sentiment()
why = wf.explain(model, "I like the movie", processor=tokenizer)
why.save("x.png")
model, table = wf.demo.load_adult()
row = wf.explain(model, adult_rows()[0], processor=table, method="grad_sam")
missing = [module for module in LIBRARIES if not installed(module)]
print(json.dumps([why.prediction.label, len(why.to_frame()), len(row.scores), missing]))
"""


def test_the_core_explains_tensors_and_names_what_it_misses(
    wheels: dict[str, Path], ours: dict[str, Distribution], tmp_path: Path
) -> None:
    core = environment(tmp_path / "core", wheels, ours, "")
    scores, said = core.python(CORE)  # type: ignore[misc]
    assert len(scores) == 5 and max(map(abs, scores)) > 0
    assert said == {extra: f"pip install 'whyformer[{extra}]'" for extra in said} and len(said) == 7
    assert "explain" in core.run("-m", "whyformer", "--help").stdout
    refused = core.run("-m", "whyformer", "demo", check=False)
    assert refused.returncode == 1 and refused.stderr.strip().endswith("pip install 'whyformer[hf,tabular,models]'")
    assert "Traceback" not in refused.stderr


def test_with_hf_texts_are_explained(wheels: dict[str, Path], ours: dict[str, Distribution], tmp_path: Path) -> None:
    env = environment(tmp_path / "hf", wheels, ours, "hf")
    folders.bert().save_pretrained(env.folder / "bert")
    folders.tokenizer(tmp_path).save_pretrained(env.folder / "bert")
    ranked, said = env.python(HF)  # type: ignore[misc]
    assert sorted(ranked) == sorted("the movie was not good".split())
    assert said == [f"pip install 'whyformer[{extra}]'" for extra in ("plot", "tabular", "models")]


def test_with_all_the_models_are_there(wheels: dict[str, Path], ours: dict[str, Distribution], tmp_path: Path) -> None:
    env = environment(tmp_path / "all", wheels, ours, "all")
    label, rows, columns, missing = env.python(ALL)  # type: ignore[misc]
    assert (label, rows, columns) == ("positive", 6, 13)
    apart = {module for module, (_, extra) in LIBRARIES.items() if not extra or extra in APART}
    assert {*missing, "opentelemetry"} == apart  # newer versions of FastAPI bring OpenTelemetry's API


def test_after_make_demo_the_demo_and_the_server_run(
    wheels: dict[str, Path], ours: dict[str, Distribution], tmp_path: Path
) -> None:
    """What setup-demo installs is enough for ``whyformer demo``, ``whyformer serve`` and each download of its page."""
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    (extras,) = re.findall(r'-e \./models -e "\.\[([\w,]+)\]"\n\ttouch \$\(READY\)', makefile)
    env = environment(tmp_path / "demo", wheels, ours, f"{extras},models")
    env.run("-m", "whyformer", "demo", "--out", "whyformer-demo.html")
    call = [str(env.folder / "bin" / "python"), "-u", "-m", "whyformer", "serve", "--port", "0", "--store", "results"]
    with subprocess.Popen(call, cwd=env.folder, env=env.variables(), stdout=-1, text=True) as server:
        try:
            assert server.stdout is not None
            (address,) = re.findall(r"http://\S+?:\d+", server.stdout.readline())
            assert b"<html" in urlopen(address).read()
            asked = {"model": "sentiment", "input": {"text": "I like the movie"}, "wait": 60}
            question = Request(
                f"{address}/api/explain", json.dumps(asked).encode(), {"content-type": "application/json"}
            )
            result = f"{address}/api/results/{json.load(urlopen(question))['id']}/export?format="
            assert all(len(urlopen(result + form).read()) > 100 for form in ("html", "json", "png", "csv"))
        finally:
            server.terminate()
