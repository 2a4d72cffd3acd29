"""Folders of models that carry code: it is not run unless the user wishes so, whichever way they are loaded."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import whyformer as wf
from tests.support import folders
from whyformer.cli._options import load, load_any
from whyformer.errors import BadInput, MissingExtra
from whyformer.inputs.checkpoint import Checkpoint, CodeOfItsOwn

NEW = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"


def sentence_transformer(folder: Path, *kinds: str, activation: str = "torch.nn.modules.activation.Tanh") -> Path:
    """As sentence_transformers writes it, and a module that leaves a file behind when it is imported."""
    modules = [{"idx": i, "name": str(i), "path": f"{i}_Module", "type": kind} for i, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    for name in ("1_Pooling", *(module["path"] for module in modules)):
        (folder / name).mkdir()
        config = {"pooling_mode_cls_token": True, "activation_function": activation}
        (folder / name / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
    return folder


DOORS = {
    "explain": lambda folder: wf.explain(folder, ("one text", "another")),
    "a string": lambda folder: wf.explain(str(folder), ("one text", "another")),
    "command line": lambda folder: load("encoder", str(folder)),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("kinds", "activation"),
    [
        (("mine.Mine",), "torch.nn.modules.activation.Tanh"),
        (("sentence_transformers.models.Transformer", "mine.Mine"), "torch.nn.modules.activation.Tanh"),
        (("sentence_transformers.models.Router",), "torch.nn.modules.activation.Tanh"),  # it reads further names
        (("sentence_transformers_mine.models.Pooling",), "torch.nn.modules.activation.Tanh"),
        (("sentence_transformers.models.Dense",), "mine.Mine"),
        (("sentence_transformers.base.modules.dense.Dense",), "torch.hub.load"),
    ],
)
def test_modules_of_a_sentence_transformer(
    kinds: tuple[str, ...], activation: str, door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sentence_transformer(tmp_path, *kinds, activation=activation)
    monkeypatch.chdir(folder)
    with pytest.raises(CodeOfItsOwn, match=r"its own code .its files name"):
        DOORS[door](folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("kinds", [("sentence_transformers.models.Transformer", NEW), ()])
def test_known_modules_and_trusted_folders_are_loaded(kinds: tuple[str, ...], tmp_path: Path) -> None:
    """Where the library is not installed: it is what is missing then."""
    known, trusted = tmp_path / "known", tmp_path / "trusted"
    for folder, named, trust in ((known, kinds, False), (trusted, ("mine.Mine",), True)):
        folder.mkdir()
        sentence_transformer(folder, *named)
        try:
            import sentence_transformers  # noqa: F401
        except ImportError:
            with pytest.raises(MissingExtra, match="sentence-transformers"):
                Checkpoint(str(folder), trust).sentence_transformer()


@pytest.mark.parametrize("text", ["{", "[[1]]", '[{"type": 3}]', '{"a": 1}', "[" * 10_000])
def test_damaged_lists_of_modules(text: str, tmp_path: Path) -> None:
    folder = sentence_transformer(tmp_path)
    (folder / "modules.json").write_text(text)
    with pytest.raises(BadInput, match="no SentenceTransformer could be loaded"):
        wf.explain(folder, ("one text", "another"))


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("raw", [True, False])
def test_weights_that_hold_code_are_refused_without_advice_to_run_it(raw: bool, tmp_path: Path) -> None:
    model, ran = folders.bert(), tmp_path / "ran"
    model.config.architectures = ["BertForSequenceClassification"]
    model.config.save_pretrained(tmp_path)
    folders.tokenizer(tmp_path).save_pretrained(tmp_path)
    weights = tmp_path / "pytorch_model.bin"
    torch.save(model.state_dict(), weights)
    plain = wf.explain(tmp_path, "i like it", method="grad_sam")
    direct = wf.explain(model, "i like it", folders.tokenizer(tmp_path), method="grad_sam")
    assert plain.ranked() == direct.ranked(), "tensors alone are read"
    if raw:
        weights.write_bytes(pickle.dumps(Trap(ran)))
    else:
        torch.save({**model.state_dict(), "more": Trap(ran)}, weights)
    doors = (lambda: wf.explain(tmp_path, "i like it"), lambda: load("text", str(tmp_path)))
    for door in doors:
        with pytest.raises(BadInput, match="a pickle with more in it than tensors") as caught:
            door()
        assert "weights_only" not in str(caught.value)
    with pytest.raises(BadInput, match="safetensors"):  # as serve loads them
        load_any(str(tmp_path), pickles=False)
    assert not ran.exists()
