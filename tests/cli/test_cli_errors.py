"""What goes wrong: one line on stderr, nothing on stdout, 1 for whyformer's errors and 2 for wrong usage; pipes."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import whyformer as wf
from tests.cli.test_cli import SNAPSHOTS, run
from tests.concepts.textures import FOLDER
from tests.support import folders
from tests.support.released import BEFORE_FIVE
from whyformer.cli._input import made_by, text_of_stdin
from whyformer.cli._options import load_any
from whyformer.cli.service_commands import served_model
from whyformer.demo import model_folder
from whyformer.errors import BadInput

ESCAPE = "\x1b]0;owned\x07\x9b31m\u202e"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# The command line, its exit code, and words of the message. Models that are not there are never reached.
REFUSED = [
    ("frobnicate", 2, "No such command"),
    ("demo --out x.png", 2, "something.html"),
    ("explain text", 2, "give a text"),
    ("explain text a --out x.gif", 2, ".html, .png"),
    ("explain text a --out no/such/folder/x.html", 2, "there is no folder"),
    ("explain text a --option heads", 2, "KEY=VALUE"),
    ("explain text a --units letter", 2, "not one of token, word"),
    ("explain text a --batch-size 0", 2, "batch-size"),
    ("explain text --file nowhere.txt", 2, "does not exist"),
    ("explain text --file binary.bin", 1, "is not a UTF-8 text file"),
    ("explain text a -m grad_sm", 1, "Did you mean 'grad_sam'"),
    ("explain text a -t posi", 1, "Did you mean 'positive'"),
    ("explain text a -t ²", 1, "unknown target '²'"),
    (f"explain text a -t {'9' * 5000}", 1, "unknown target"),
    ("explain text 'a \ud83d b'", 1, "half a character"),
    ("explain text a --scalar loss", 1, "scalar='loss' of Explainer.explain is not allowed: give"),
    ("explain text a --model ./nowhere/", 1, "there is no folder"),
    ("explain text a --model empty/", 1, "no model could be loaded"),
    ("explain text a --model VIT", 1, "explain image"),
    ("explain image photo.jpg --model BERT", 1, "explain text"),
    ("explain image binary.bin --model VIT", 1, "cannot be read as an image"),
    ("explain text a --model ENCODER", 1, "has no head"),
    ("explain similar a b --model BERT", 1, "BertForSequenceClassification: it has a head"),
    ("explain pair photo.jpg a --model LXMERT", 1, "which a detector makes"),
    ("explain pair photo.jpg a --model T5", 1, "is not a model of images with texts"),
    ("explain sound clip.wav --model T5", 1, "is not a sound model"),
    ("explain table --overall --report x.html", 2, "omit --overall"),
    ("explain table --overall -m saliency -m occlusion", 2, "one method at a time"),
    ("explain table --row 40", 1, "numbered 0 to 39"),
    ("explain table none.csv", 1, "no CSV file at"),
    ("explain table rows.csv --model none.py:load", 1, "no file"),
    ("explain table rows.csv --model no.such:load", 1, "cannot be imported"),
    ("explain table rows.csv --model empty", 1, "not a saved tabular model"),
    ("explain prompt 'who ?' --model m/ --span", 2, "give --answer or --generate"),
    ("explain nowhere.jpg", 1, "there is no file 'nowhere.jpg'. If it is a text: whyformer explain text nowhere.jpg"),
    ("explain nowhere.txt", 1, "there is no file 'nowhere.txt'"),
    ("explain nowhere.jsonl", 1, "there is no file 'nowhere.jsonl'"),
    ("explain photos/cat", 1, "there is no file 'photos/cat'"),
    ("explain 'So boring' nowhere.csv", 1, "there is no file 'nowhere.csv'"),
    ("explain image nowhere.jpg", 1, "nowhere.jpg"),
    ("explain prompt nowhere.txt --model m/", 1, "echo nowhere.txt | whyformer explain prompt -"),
    ("explain prompt lines.txt --model m/", 1, "cat lines.txt | whyformer explain prompt -"),
    ("explain pair photo.jpg nowhere.txt --model m/", 1, "put a space before it: ' nowhere.txt'"),
    ("explain similar nowhere.txt b --model m/", 1, "there is no file 'nowhere.txt'"),
    ("explain sound nowhere.wav --model WAV2VEC2", 1, "nowhere.wav"),
    ("ask nowhere.txt --model m/", 1, "there is no file 'nowhere.txt'"),
    ("ask lines.txt --model m/", 1, "takes the text itself: cat lines.txt | whyformer ask -"),
    ("check nowhere.txt", 1, "there is no file 'nowhere.txt'. If it is a text: echo nowhere.txt | whyformer check -"),
    ("check photo.jpg", 1, "is a file, and this model takes texts"),
    ("compare nowhere.csv", 1, "there is no file 'nowhere.csv'"),
    ("recommend data/reviews", 1, "there is no file 'data/reviews'"),
    ("heads nowhere.txt", 1, "there is no file 'nowhere.txt'"),
    ("attention nowhere.png", 1, "there is no file 'nowhere.png'"),
    ("attention https://example.com/cat.jpg", 1, "no network is used here: download it first"),
    ("batch nowhere.csv --out o", 1, "nowhere.csv"),
    ("explain https://example.com/cat.jpg", 1, "no network is used here: download it first"),
    ("explain .", 1, "is a folder: give files"),
    ("explain notes.pdf", 1, "no ending that names its kind"),
    ("explain rows.jsonl", 1, "has columns: use whyformer batch rows.jsonl --column NAME"),
    ("explain text --file table.csv", 1, "has columns, and --file reads one text per line: use whyformer batch"),
    ("compare table.csv", 1, "has columns, and --file reads one text per line"),
    ("explain ''", 1, "the text is empty"),
    ("explain photo.jpg 'I like it'", 1, "give one kind at a time"),
    ("explain lines.txt lines.txt", 1, "one text file at a time"),
    ("ask 'who ?' --model m/ --docs nowhere", 1, "--docs: there is no folder 'nowhere'"),
    ("ask 'who ?' --model m/ --docs empty", 1, "has no .txt or .md file"),
    ("ask 'who ?' --model m/ --docs blank", 1, "with a word in it"),
    ("ask 'who ?' --model m/ --docs damaged", 1, "is not a UTF-8 text file"),
    ("ask 'who ?' --model m/ --docs texts --units word", 2, "without --docs"),
    ("ask ' ' --model m/", 2, "the question is empty"),
    ("ask 'who ?' --model m/ -g 3 --answer he", 2, "--answer gives the answer: choose one"),
    ("ask 'who ?' --model m/ --units line", 2, "not one of token, word, sentence, role"),
    ("ask 'who ?' --model BERT", 1, "not a generative language model"),
    ("methods grad_sm", 1, "Did you mean 'grad_sam'"),
    ("methods lime", 1, "unknown method 'lime'. Nearest here: 'shap' (Shapley values"),
    ("explain text a -m GradCAM", 1, "Did you mean 'grad_cam'?"),
    ("check a -m kernel_shap", 1, "Nearest here: 'shap'"),
    ("ask 'who ?' --model m/ -m IG", 1, "Nearest here: 'integrated_gradients'"),
    ("metrics MoRF", 1, "Nearest here: 'aopc'"),
    ("compare --metric pixel_flipping", 1, "Nearest here: 'aopc'"),
    ("attention --what maps", 1, "map"),
    ("attention --scale 1,x", 2, "two numbers"),
    ("attention --layer 9", 1, "4 sites"),
    ("attention --model SENTIMENT --what colours", 1, "give an image model"),
    ("attention --out maps.npz", 2, "the ending selects"),
    ("maximize --steps 1 --neuron 3", 2, "give --layer"),
    ("maximize --steps 1 --layer 1 --position 3", 2, "give --neuron"),
    ("maximize --steps 1 zebra-like --layer 1", 2, "not both"),
    ("maximize --steps 1 --model TEXTURES", 2, "needs a class"),
    ("maximize --steps 1 --option jitter=1e999", 1, "jitter=inf"),
    ("tcav --model TEXTURES", 2, "together"),
    ("tcav --model TEXTURES -c a=empty -r empty -i empty -t 0 -l 0", 1, "no images"),
    ("tcav --model TEXTURES -c a=empty -i empty -t 0 -l 0", 2, "--relative"),
    ("heads --what gates a b", 1, "give --labels"),
    ("heads --what pruning a", 1, "at least 2 inputs (got 1)"),
    ("heads --what pruning a b --labels label.txt", 1, "1 labels, and there are 2 inputs"),
    ("compare 'I like the movie' -m two_ended --metric aopc --hold 'the book'", 1, "'the book' is not in input 0"),
    ("recommend 'So boring'", 1, "at least 4"),
    ("recommend 'So boring' --budget soon", 1, "500ms"),
    ("check", 2, "give a text"),
    ("check text -c sink", 1, "Did you mean 'sinks'"),
    ("batch table.csv --out o --quiet --log", 2, "choose one"),
    ("batch table.csv --out o", 1, "column of the input is not clear"),
]


@pytest.mark.parametrize(("command", "code", "words"), REFUSED, ids=lambda value: ascii(value)[:60])
def test_refused(
    command: str,
    code: int,
    words: str,
    files: Path,
    folder: Path,
    vit_folder: Path,
    bert_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(files)
    folders = {"VIT": vit_folder, "BERT": bert_folder, "TEXTURES": FOLDER, "SENTIMENT": model_folder("sentiment")}
    folders |= {name.upper(): folder / name for name in ("encoder", "lxmert", "t5", "wav2vec2")}
    result = run(*(folders.get(word, word) for word in shlex.split(command)), code=code)
    assert words in " ".join(result.stderr.replace("│", "").split())
    assert result.stdout == "" and "Traceback" not in result.stderr
    if code == 1:
        assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1


def test_a_folder_without_its_tokenizer_or_weights(tmp_path: Path, photo: Path) -> None:
    from tests.support import folders

    folders.vit().save_pretrained(tmp_path)
    assert "image processor" in run("explain", "image", photo, "--model", tmp_path, code=1).stderr
    (tmp_path / "model.safetensors").unlink()
    assert "weights" in run("explain", "image", photo, "--model", tmp_path, code=1).stderr


# What would steer a terminal is shown as symbols: in results, errors and wrong usage.

STEERING = [  # ESC stands for what steers
    ("explain text a -t posiESC", 1),
    ("explain text a --model ./noESC/", 1),
    ("explain text a -o heads=ESC -m raw_attention", 1),
    ("explain table --model ESC:load", 1),
    ("methods ESC", 1),
    ("ESC", 2),
    ("--ESC", 2),
    ("explain text a --option ESC", 2),
    ("explain text a --batch-size ESC", 2),
    ("explain text --file ESC", 2),
]


@pytest.mark.parametrize(("command", "code"), STEERING)
def test_refusals_steer_nothing(command: str, code: int) -> None:
    shown = run(*command.replace("ESC", ESCAPE).split(" "), code=code).stderr
    assert not RAW.search(shown), repr(shown)
    assert shown.startswith("Error: ") if code == 1 else "Error: " in shown


def test_texts_and_names_of_files(tmp_path: Path) -> None:
    text = f"I like\x1b[2J the {ESCAPE}movie"
    shown = run("explain", "text", text, "-m", "random", "-m", "raw_attention").stdout
    assert not RAW.search(shown) and "␛[2J" in shown
    out = tmp_path / f"why{ESCAPE}.html"
    assert "why␛]0;owned␇⟨U+009B⟩31m⟨U+202E⟩.html" in run("explain", "text", "a", "--out", out).stderr
    assert out.is_file()
    shown = run("explain", "text", text, "-m", "random", "--json").stdout
    assert not RAW.search(shown) and json.loads(shown)[0]["units"]["text"] == text


# The program itself, with pipes at its ends. Importing torch and transformers takes most of the time of a command, so
# that all are run by one Python, one after the other, each as ``python -m whyformer`` does.


PROGRAM = """
import json, sys
from whyformer.__main__ import main

for encoding, *words in json.loads(sys.argv[1]):
    sys.argv = ["whyformer", *words]
    sys.stdout.reconfigure(encoding=encoding)
    sys.stderr.reconfigure(encoding=encoding)
    try:
        main()
    except SystemExit as end:
        code = end.code
    for stream in (sys.stdout, sys.stderr):
        print(f"-- ended with {code} --", file=stream, flush=True)
"""
MINE = """
import warnings
class Made(tuple):
    def __len__(self):
        raise RuntimeError({escape!r})
def load():
    warnings.warn("look: " + {escape!r})
    return Made()
"""
ENDED = re.compile(r"-- ended with (\d+) --\n")


class Ended(NamedTuple):
    """A command's exit code, and what it wrote."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """How commands end that say what they say into pipes."""
    home = tmp_path_factory.mktemp("program")
    mine = home / "mine.py"
    mine.write_text(MINE.format(escape=ESCAPE), encoding="utf-8")
    code = of_unknown_kind(home / "unknown", home / "marker")
    commands = {
        # The pipe takes ASCII only: blocks become question marks, and nothing crashes.
        "result": ("ascii", "explain", "text", "I like the movie", "So boring", "-m", "occlusion"),
        "code of a model": ("utf-8", "explain", "text", "-", "--model", str(code)),
        "bug": ("utf-8", "explain", "table", "--model", f"{mine}:load"),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(list(commands.values()))],
        input="y\ny\n",
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=os.environ | {"COLUMNS": "80", "HF_MODULES_CACHE": str(home / "modules")},
    )
    assert done.returncode == 0, done.stderr
    (*out, _), (*err, _) = (ENDED.split(stream) for stream in (done.stdout, done.stderr))
    assert out[1::2] == err[1::2]
    each = zip(map(int, out[1::2]), out[::2], err[::2], strict=True)
    assert not (home / "marker").exists(), "the folder's code ran"
    return {name: Ended(*parts) for name, parts in zip(commands, each, strict=True)}


def test_in_a_pipe_there_is_the_result_and_nothing_else(ended: dict[str, Ended]) -> None:
    """No colour codes, no progress bars, no notices of other libraries."""
    result = ended["result"]
    assert (result.code, result.stderr) == (0, "") and result.stdout.isascii()
    assert "So boring" in result.stdout and "?" in result.stdout
    assert "\x1b" not in result.stdout and "\r" not in result.stdout
    assert all(line == line.rstrip() and len(line) <= 80 for line in result.stdout.splitlines())


def test_a_pipe_is_not_asked_whether_code_may_run(ended: dict[str, Ended]) -> None:
    """Whatever it holds is no answer."""
    refused = ended["code of a model"]
    assert refused.code == 1
    assert "--trust-remote-code" in refused.stderr and "y/N" not in refused.stdout + refused.stderr


def test_a_bug_keeps_its_traceback_and_steers_nothing(ended: dict[str, Ended]) -> None:
    bug = ended["bug"]
    assert bug.code == 1 and not RAW.search(bug.stderr)
    for words in ("Traceback", "RuntimeError: ␛]0;owned", "UserWarning: look: ␛]0;owned"):
        assert words in bug.stderr


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m whyformer --help | head -c 10"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


# Code that comes with a model runs when it is asked for with --trust-remote-code, and never otherwise.

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


def plain_folder(folder: Path) -> None:
    folders.bert().save_pretrained(folder)
    folders.tokenizer(folder).save_pretrained(folder)


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


def of_unknown_class(folder: Path, marker: Path) -> Path:
    """A known kind whose class is the folder's code."""
    of_unknown_kind(folder, marker)
    (folder / "modeling_mine.py").write_text(CONFIG.format(marker=str(marker)) + MODEL, encoding="utf-8")
    code = {"AutoModelForSequenceClassification": "modeling_mine.MineForSequenceClassification"}
    changed_json(folder / "config.json", model_type="bert", auto_map=code)
    return folder


def with_tokenizer(folder: Path, marker: Path) -> Path:
    plain_folder(folder)
    (folder / "tokenization_mine.py").write_text(TOKENIZER.format(marker=str(marker)), encoding="utf-8")
    changed_json(
        folder / "tokenizer_config.json",
        tokenizer_class="MineTokenizer",
        auto_map={"AutoTokenizer": ["tokenization_mine.MineTokenizer", None]},
    )
    return folder


def with_generate(folder: Path, marker: Path) -> Path:
    """A known language model with a generate() of its own."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=40, n_positions=16)
    GPT2LMHeadModel(config).save_pretrained(folder)
    folders.tokenizer(folder).save_pretrained(folder)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(GENERATE.format(marker=str(marker)), encoding="utf-8")
    return folder


def with_needless_code(folder: Path, marker: Path) -> Path:
    """Many folders name their own code and a class that transformers has: that is the one that is loaded."""
    plain_folder(folder)
    (folder / "modeling_mine.py").write_text(CONFIG.format(marker=str(marker)) + MODEL, encoding="utf-8")
    changed_json(folder / "config.json", auto_map={"AutoModelForSequenceClassification": "modeling_mine.Mine"})
    return folder


COMMANDS = [
    ("explain", "text", "-"),
    ("explain", "similar", "a", "b"),
    ("explain", "pair", "PHOTO", "a"),
    ("capture",),
    ("compare", "-"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_code_is_not_run_unasked_even_if_the_input_says_yes(
    command: tuple[str, ...], tmp_path: Path, marker: Path, photo: Path
) -> None:
    folder = of_unknown_kind(tmp_path / "mine", marker)
    words = [str(photo) if word == "PHOTO" else word for word in command]
    shown = run(*words, "--model", folder, stdin="y\nyes\ny\nI like it\n", code=1).stderr
    assert not marker.exists(), "the folder's code ran"
    assert shown.startswith("Error: ") and shown.count("\n") == 1
    assert "--trust-remote-code" in shown and str(folder) in shown


def test_code_for_generate_is_refused_where_transformers_would_run_it(
    tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.__version__", "4.57.1")
    folder = with_generate(tmp_path / "mine", marker)
    assert "--trust-remote-code" in run("explain", "text", "i like it", "--model", folder, code=1).stderr
    assert not marker.exists()


# transformers 4 has no tokenizer for a folder that names one of its own, and runs code for generate: both are refused.
@pytest.mark.parametrize("made", [with_needless_code, *[with_tokenizer, with_generate] * (not BEFORE_FIVE)])
def test_code_beside_what_transformers_has_is_left_alone(
    made: Callable[[Path, Path], Path], tmp_path: Path, marker: Path
) -> None:
    folder = made(tmp_path / "mine", marker)
    assert "like" in run("explain", "text", "-", "--model", folder, stdin="i like it\n").stdout
    assert not marker.exists()


@pytest.mark.parametrize("made", [of_unknown_kind, of_unknown_class, with_tokenizer])
def test_what_is_refused_runs_as_advised(made: Callable[[Path, Path], Path], tmp_path: Path, marker: Path) -> None:
    asked = ("explain", "text", "i like it", "--model", made(tmp_path / "mine", marker), "-m", "raw_attention")
    if made is not with_tokenizer:  # transformers has another tokenizer for it
        assert "--trust-remote-code" in run(*asked, stdin="y\n", code=1).stderr and not marker.exists()
    assert "i like it" in run(*asked, "--trust-remote-code").stdout and marker.exists()


def test_every_command_that_loads_from_transformers_has_the_option() -> None:
    """By the stored helps; those of tables and the server load known classes, or what the user names."""
    helps = {path.stem: path.read_text(encoding="utf-8") for path in SNAPSHOTS.glob("help-*.txt")}
    without = {name for name, text in helps.items() if "--model" in text and "--trust-remote-code" not in text}
    assert without == {"help-explain-table", "help-serve", "help-explain"}


def test_whatever_is_loaded_is_loaded_with_a_decision() -> None:
    """Every call in the package that could run a model's own code says whether it may."""
    calls = 0
    for path in sorted(Path(wf.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", ""))
            if named in ("from_pretrained", "SentenceTransformer", "pipeline"):
                calls += 1
                assert isinstance(node, ast.Call)
                assert "trust_remote_code" in [k.arg for k in node.keywords], f"{path}:{node.lineno}"
    assert calls >= 7


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("mine.py:number", "is of type int"),
        ("mine.py:asks", "failed .TypeError: .*called without arguments"),
        ("mine.py:fails", "failed .ValueError: inside"),
        ("mine.py:nothing", "is not there"),
        ("broken.py:load", "cannot be imported .SyntaxError"),
        ("mine.py:", "names no function"),
        (":load", "names no function"),
    ],
)
def test_a_function_that_makes_no_model_is_an_error_of_one_line(
    name: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "mine.py").write_text("number = 3\ndef asks(a): pass\ndef fails(): raise ValueError('inside')\n")
    (tmp_path / "broken.py").write_text("def (")
    with pytest.raises(BadInput, match=match):
        made_by(name)


def test_a_function_makes_a_model_of_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "texts.py").write_text(
        "def load():\n    return lambda texts: [[0.2, 0.8] if 'good' in text else [0.7, 0.3] for text in texts]\n"
    )
    assert '"good"' in run("explain", "a good film", "--model", "texts.py:load", "--json").stdout
    model, processor, kind = load_any("texts.py:load")
    assert (processor, kind) == (None, "text") and type(model).__name__ == "<lambda> (asked)"
    (tmp_path / "rows.csv").write_text("text\na good film\na dull film\n")
    run("batch", "rows.csv", "--model", "texts.py:load", "--out", "why")
    assert [e.target.index for e in wf.load(tmp_path / "why")] == [1, 0]
    assert served_model("texts.py:load").kind == "text"


def test_a_closed_stdin_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(BadInput, match="stdin is closed"):
        text_of_stdin()
