"""A model by its folder or name, or inside a pipeline, in place of the model itself."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import torch

import whyformer as wf
from tests.support import folders, language
from whyformer.errors import BadInput, MissingProcessor
from whyformer.inputs import checkpoint
from whyformer.inputs.modalities import unpacked

TEXT = "i like it"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier with its tokenizer."""
    folder = tmp_path_factory.mktemp("texts")
    folders.bert().save_pretrained(folder)
    folders.tokenizer(folder / "vocabulary").save_pretrained(folder)
    return folder


def test_a_folder_explains_as_its_model_does(texts: Path, tmp_path: Path) -> None:
    expected = wf.explain(folders.bert(), TEXT, folders.tokenizer(tmp_path))
    held = wf.Explainer(str(texts))
    assert not held.model.training
    for other in (wf.explain(texts, TEXT), wf.explain(str(texts), TEXT), held.explain(TEXT)):
        np.testing.assert_allclose(other.scores, expected.scores, atol=1e-6)
        assert (other.units.labels, other.target) == (expected.units.labels, expected.target)
    several = wf.explain(texts, [TEXT, "so bad"])
    assert [type(one) for one in several] == [wf.Explanation] * 2
    assert wf.compare(texts, [TEXT], method=["random"], metric=["comprehensiveness"]).inputs == 1


def test_a_folder_without_a_tokenizer(tmp_path: Path, texts: Path) -> None:
    folders.bert().save_pretrained(tmp_path)
    with pytest.raises(MissingProcessor, match="text needs the model's tokenizer"):
        wf.explain(tmp_path, TEXT)
    expected = wf.explain(texts, TEXT)
    tokenizer = folders.tokenizer(tmp_path / "vocabulary")
    np.testing.assert_allclose(wf.explain(tmp_path, TEXT, tokenizer).scores, expected.scores, atol=1e-6)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    (found,) = wf.explain(tmp_path, {"input_ids": ids}, method="generic_attention")
    expected = wf.explain(texts, TEXT, method="generic_attention")
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)


def test_a_damaged_tokenizer_is_not_taken_for_none(tmp_path: Path) -> None:
    folders.bert().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(BadInput, match=r"the processor of .* could not be loaded"):
        wf.explain(tmp_path, TEXT)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no-one/nothing", r"no model could be loaded from 'no-one/nothing': .*save_pretrained\(\)"),
        (TEXT, "no model could be loaded from 'i like it': "),  # the text in the model's place
        (Path("/there/is/absent"), r"there is no folder '.*absent' to load a model from"),
        ("/absent/", "there is no folder '/absent/' to load a model from"),
        *((nothing, "model=") for nothing in ("", "  ", "a\0b")),
    ],
)
def test_a_name_that_is_nowhere(name: str | Path, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match=words):
        wf.Explainer(name)


def test_without_a_network_nothing_is_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name server is asked twice, and then files of earlier downloads are looked for; behind a proxy, as before."""
    asked: list[Any] = []

    def unknown(*where: Any, **how: Any) -> Any:
        asked.append(where)
        raise socket.gaierror(-2, "Name or service not known")

    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "https://hub.invalid")
    monkeypatch.setattr(checkpoint, "PAUSE", 0.0)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(BadInput, match="no model could be loaded from 'no-one/nothing'"):
        wf.Explainer("no-one/nothing")
    assert asked[:2] == [("hub.invalid", 443)] * 2
    assert len(asked) <= 3, "once in a process the hub's own library asks for a list of programs that call it"
    asks = checkpoint.Checkpoint("no-one/nothing")._places
    assert asks == {"local_files_only": True}
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:1")
    assert not checkpoint.hub_is_away()
    monkeypatch.delenv("https_proxy")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *where, **how: asked.clear() or [])
    assert not checkpoint.hub_is_away() and asked == []
    assert checkpoint.Checkpoint("no-one/nothing")._places == {}


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    (tmp_path / "weights").touch()
    for name, words in (("weights", "is a file: give the folder"), ("", "no model could be loaded from")):
        with pytest.raises(BadInput, match=words):
            wf.Explainer(tmp_path / name)
    (tmp_path / "table.json").write_text("{}", encoding="utf-8")
    with pytest.raises(BadInput, match=r"model of a table: whyformer\.tables\.load_model"):
        wf.Explainer(tmp_path)


def test_code_of_a_folder_is_not_run(tmp_path: Path) -> None:
    config = {"model_type": "own", "architectures": ["OwnModel"], "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "own.py").write_text("raise SystemExit('this ran')", encoding="utf-8")
    with pytest.raises(BadInput, match=r"contains its own code.*load the model with trust_remote_code=True"):
        wf.Explainer(tmp_path)


def test_code_of_a_sentence_transformer_is_not_run(tmp_path: Path) -> None:
    """Versions of the library before 6 would import it. More of this: tests/hostile/test_model_folders.py."""
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}', encoding="utf-8")
    (tmp_path / "modules.json").write_text('[{"type": "mine.Mine", "path": ""}]', encoding="utf-8")
    with pytest.raises(BadInput, match=r"contains its own code .its files name 'mine.Mine'"):
        wf.explain(tmp_path, ("one text", "another"))


def test_weights_that_hold_more_than_tensors_are_refused(tmp_path: Path) -> None:
    config = folders.bert().config
    config.architectures = ["BertForSequenceClassification"]
    config.save_pretrained(tmp_path)
    torch.save({"weights": print}, tmp_path / "pytorch_model.bin")
    with pytest.raises(BadInput, match="a pickle with more in it than tensors") as caught:
        wf.Explainer(tmp_path)
    assert "weights_only" not in str(caught.value), "torch's advice would run what is in it"


def test_pipelines(tmp_path: Path, texts: Path) -> None:
    from transformers import pipeline

    asked = pipeline("text-classification", model=folders.bert(), tokenizer=folders.tokenizer(tmp_path))
    np.testing.assert_allclose(wf.explain(asked, TEXT).scores, wf.explain(texts, TEXT).scores, atol=1e-6)


def test_verbs_that_look_at_the_model_before_they_run_it(texts: Path, tmp_path: Path) -> None:
    """They looked at what they were given, which may be a folder or an Explainer."""
    language.model("gpt2").save_pretrained(tmp_path)
    language.tokenizer().save_pretrained(tmp_path)
    expected = wf.heads.circuits(language.model("gpt2"), tokenizer=language.tokenizer())
    scores = wf.heads.induction(language.model("gpt2"), tokenizer=language.tokenizer(), length=4, sequences=1)
    for model in (tmp_path, wf.Explainer(tmp_path)):
        np.testing.assert_allclose(wf.heads.circuits(model).copying, expected.copying, atol=1e-5)
        found = wf.heads.induction(model, length=4, sequences=1)
        np.testing.assert_allclose(found.induction, scores.induction, atol=1e-5)


@pytest.mark.parametrize(
    ("parts", "taken"),
    [
        ({"tokenizer": None, "image_processor": "i"}, "i"),
        ({"feature_extractor": "f", "tokenizer": "t"}, {"feature_extractor": "f", "tokenizer": "t"}),
        ({"processor": "p", "tokenizer": "t"}, "p"),
        ({}, None),
    ],
)
def test_what_a_pipeline_encodes_with(parts: dict[str, Any], taken: Any) -> None:
    model = folders.bert()
    for name, expected in ((None, taken), ("mine", "mine")):
        inner, processor = unpacked(SimpleNamespace(model=model, **parts), name)
        assert inner is model
        assert (vars(processor) if isinstance(processor, SimpleNamespace) else processor) == expected


class Negated:
    """Holds a model, and is called itself."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        return -self.model(input_ids=input_ids).logits


def test_what_is_called_is_what_is_explained_or_it_is_refused() -> None:
    ids = torch.tensor([[2, 7, 8, 3]])
    with pytest.raises(BadInput, match=r"Negated has a model, and is called itself.*Pass its \.model"):
        wf.explain(Negated(folders.bert()), {"input_ids": ids}, method="occlusion", replace=1)
