"""Code that comes with a model runs when it is asked for with --trust-remote-code, and never otherwise."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

import whyformer
from tests.cli.test_cli import SNAPSHOTS, run
from tests.support import folders

CONFIG = """
from pathlib import Path
Path({marker!r}).write_text("ran")
from transformers import BertConfig
class MineConfig(BertConfig):
    model_type = "mine"
"""
MODEL = """
from transformers import BertForSequenceClassification
from .configuration_mine import MineConfig
class MineForSequenceClassification(BertForSequenceClassification):
    config_class = MineConfig
"""
TOKENIZER = """
from pathlib import Path
Path({marker!r}).write_text("ran")
from transformers import BertTokenizerFast
class MineTokenizer(BertTokenizerFast):
    pass
"""
GENERATE = """
from pathlib import Path
Path({marker!r}).write_text("ran")
def generate(model, *args, **kwargs):
    return None
"""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once the code ran; copies of the code go into a folder of the test."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path / "marker"


def plain_folder(folder: Path) -> Path:
    folders.bert().save_pretrained(folder)
    folders.tokenizer(folder).save_pretrained(folder)
    return folder


def changed_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def of_unknown_kind(folder: Path, marker: Path) -> Path:
    """A kind of model that transformers does not have: config and model are the folder's code."""
    plain_folder(folder)
    (folder / "configuration_mine.py").write_text(CONFIG.format(marker=str(marker)), encoding="utf-8")
    (folder / "modeling_mine.py").write_text(MODEL, encoding="utf-8")
    changed_json(
        folder / "config.json",
        model_type="mine",
        architectures=["MineForSequenceClassification"],
        auto_map={
            "AutoConfig": "configuration_mine.MineConfig",
            "AutoModelForSequenceClassification": "modeling_mine.MineForSequenceClassification",
        },
    )
    return folder


@pytest.fixture
def unknown_kind(tmp_path: Path, marker: Path) -> Path:
    return of_unknown_kind(tmp_path / "mine", marker)


@pytest.fixture
def unknown_class(unknown_kind: Path, marker: Path) -> Path:
    """A known kind whose class is the folder's code."""
    (unknown_kind / "modeling_mine.py").write_text(CONFIG.format(marker=str(marker)) + MODEL, encoding="utf-8")
    config = json.loads((unknown_kind / "config.json").read_text(encoding="utf-8"))
    code = {"AutoModelForSequenceClassification": config["auto_map"]["AutoModelForSequenceClassification"]}
    changed_json(unknown_kind / "config.json", model_type="bert", auto_map=code)
    return unknown_kind


@pytest.fixture
def unknown_tokenizer(tmp_path: Path, marker: Path) -> Path:
    folder = plain_folder(tmp_path / "tokenizer")
    (folder / "tokenization_mine.py").write_text(TOKENIZER.format(marker=str(marker)), encoding="utf-8")
    changed_json(
        folder / "tokenizer_config.json",
        tokenizer_class="MineTokenizer",
        auto_map={"AutoTokenizer": ["tokenization_mine.MineTokenizer", None]},
    )
    return folder


@pytest.fixture
def unknown_generate(tmp_path: Path, marker: Path) -> Path:
    """A known language model with a generate() of its own."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path / "generate"
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=40, n_positions=16)
    GPT2LMHeadModel(config).save_pretrained(folder)
    folders.tokenizer(folder).save_pretrained(folder)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(GENERATE.format(marker=str(marker)), encoding="utf-8")
    return folder


COMMANDS = [
    ("explain", "text", "-"),
    ("explain", "similar", "a", "b"),
    ("explain", "pair", "PHOTO", "a"),
    ("explain", "image", "PHOTO"),
    ("explain", "sound", "a.wav"),
    ("capture",),
    ("heads", "-"),
    ("compare", "-"),
    ("recommend", "-"),
    ("check", "-"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_code_is_not_run_unasked_even_if_the_input_says_yes(
    command: tuple[str, ...], unknown_kind: Path, marker: Path, photo: Path
) -> None:
    words = [str(photo) if word == "PHOTO" else word for word in command]
    shown = run(*words, "--model", unknown_kind, stdin="y\nyes\ny\nI like it\n", code=1).stderr
    assert not marker.exists(), "the folder's code ran"
    assert shown.startswith("Error: ") and shown.count("\n") == 1
    assert "--trust-remote-code" in shown and str(unknown_kind) in shown


@pytest.mark.parametrize("kind", ["unknown_tokenizer", "unknown_generate"])
def test_code_beside_what_transformers_has_is_left_alone(
    kind: str, marker: Path, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    assert "like" in run("explain", "text", "-", "--model", folder, stdin="i like it\n").stdout
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["unknown_kind", "unknown_class", "unknown_tokenizer"])
def test_what_is_refused_runs_as_advised(kind: str, marker: Path, request: pytest.FixtureRequest) -> None:
    asked = ("explain", "text", "i like it", "--model", request.getfixturevalue(kind), "-m", "raw_attention")
    if kind != "unknown_tokenizer":  # transformers has another tokenizer for it
        assert "--trust-remote-code" in run(*asked, stdin="y\n", code=1).stderr and not marker.exists()
    assert "i like it" in run(*asked, "--trust-remote-code").stdout and marker.exists()


def test_code_that_nothing_needs_is_no_obstacle(tmp_path: Path, marker: Path) -> None:
    """Many folders name their own code and a class that transformers has: that is the one that is loaded."""
    folder = plain_folder(tmp_path / "both")
    (folder / "modeling_mine.py").write_text(CONFIG.format(marker=str(marker)) + MODEL, encoding="utf-8")
    changed_json(folder / "config.json", auto_map={"AutoModelForSequenceClassification": "modeling_mine.Mine"})
    assert "i like it" in run("explain", "text", "i like it", "--model", folder).stdout
    assert not marker.exists()


def test_every_command_that_loads_from_transformers_has_the_option() -> None:
    """By the stored helps; those of tables and the server load known classes, or what the user names."""
    helps = {path.stem: path.read_text(encoding="utf-8") for path in SNAPSHOTS.glob("help-*.txt")}
    without = {name for name, text in helps.items() if "--model" in text and "--trust-remote-code" not in text}
    assert without == {"help-explain-table", "help-serve", "help-explain"}


def test_whatever_is_loaded_is_loaded_with_a_decision() -> None:
    """Every call in the package that could run a model's own code says whether it may."""
    calls = 0
    for path in sorted(Path(whyformer.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", ""))
            if named in ("from_pretrained", "SentenceTransformer", "pipeline"):
                calls += 1
                assert isinstance(node, ast.Call)
                assert "trust_remote_code" in [k.arg for k in node.keywords], f"{path}:{node.lineno}"
    assert calls >= 7
