"""Optional libraries: none is imported without a door that names its extra, and what each door says without it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import whyformer as wf
from tests.support import folders
from whyformer import demo
from whyformer.cli.main import app
from whyformer.errors import LIBRARIES, SHIPPED, MissingExtra, installed, require
from whyformer.results.result import RESULTS
from whyformer.views.html import live as notebook

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE = Path(wf.__file__).parent
CORE = {"torch", "numpy", "scipy", "safetensors", "typer", "rich", "click"}  # typer brings click
# Imports that need no door, and why.
ELSEWHERE = {
    ("capture/fold.py", "triton"): "asked for only where capture.fold.available() says so",
    ("capture/triton_kernels.py", "triton"): "imported by capture/fold.py alone",
    ("engines/perturbation/game.py", "transformers"): "the model that is explained comes from it",
    ("inputs/checkpoint.py", "huggingface_hub"): "part of transformers, which is asked for first",
    ("tables/permutation.py", "sklearn"): "scikit-learn itself asks for these tags",
    ("serve/app.py", "starlette"): "part of fastapi",
    ("results/result.py", "pydantic_core"): "pydantic itself asks for this schema",
    ("serve/messages.py", "pydantic"): "part of fastapi",
    ("proxy/relay.py", "starlette"): "part of fastapi",
    ("proxy/chat.py", "pydantic"): "part of fastapi",
}


# Where libraries are imported


def imports_of(path: Path) -> Iterator[tuple[str, list[ast.AST]]]:
    """The top-level name of every import, and the statements around it, the outermost first."""

    def below(node: ast.AST, around: list[ast.AST]) -> Iterator[tuple[str, list[ast.AST]]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((name.name.split(".")[0], [*around, child]) for name in child.names)
            elif isinstance(child, ast.ImportFrom) and child.level == 0:
                yield str(child.module).split(".")[0], [*around, child]
            else:
                yield from below(child, [*around, child])

    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield from below(tree, [tree])


def doors(node: ast.AST, before: int | None = None) -> set[str]:
    """What ``require`` is called with (above the line ``before``), but not in functions within."""
    names: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id == "require":
            if before is None or child.lineno < before:
                names |= {a.value for a in child.args if isinstance(a, ast.Constant)}
                names |= set(SHIPPED) if any(ast.unparse(a) == "*SHIPPED" for a in child.args) else set()
        names |= doors(child, before)
    return names


def does_without(statement: ast.AST) -> bool:
    """A try that goes on where the library is missing, or code that only type checkers read."""
    if isinstance(statement, ast.If):
        return "TYPE_CHECKING" in ast.unparse(statement.test)
    caught = {ast.unparse(h.type) for h in statement.handlers if h.type} if isinstance(statement, ast.Try) else set()
    return bool(caught & {"ImportError", "Exception"})


@cache
def doors_of_package(folder: Path) -> set[str]:
    return doors(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))


def unguarded(path: Path, place: str) -> list[str]:
    found = []
    for name, around in imports_of(path):
        optional = name not in CORE | {"whyformer"} and name not in sys.stdlib_module_names
        if not optional or (place, name) in ELSEWHERE or any(map(does_without, around[1:])):
            continue
        functions = [node for node in around if isinstance(node, ast.FunctionDef)]
        packages = [folder for folder in path.parents if folder.is_relative_to(SOURCE)]  # imported before it
        known = set().union(*(doors(f, around[-1].lineno) for f in functions), *map(doors_of_package, packages))
        if name not in known:
            found.append(f"{place}:{around[-1].lineno} imports {name}")
    return found


def test_no_optional_library_is_imported_without_its_door() -> None:
    found = [line for path in SOURCE.rglob("*.py") for line in unguarded(path, path.relative_to(SOURCE).as_posix())]
    assert not found, "call whyformer.errors.require above: " + "; ".join(found)


def test_each_extra_brings_what_is_said_of_it() -> None:
    """Names of libraries and extras, against what the package declares."""
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for library, extra in LIBRARIES.values():
        if extra:
            declared = {re.split(r"[^\w-]", line)[0] for line in project["optional-dependencies"][extra]}
            assert library in declared, (library, extra)


def test_all_that_is_missing_is_named_at_once(without: Callable[..., None]) -> None:
    without("transformers", "whyformer_models", "tab_transformer_pytorch")
    with pytest.raises(MissingExtra) as error:
        require("transformers", "PIL", "whyformer_models", why="this")
    assert str(error.value) == "this needs transformers and whyformer-models: pip install 'whyformer[hf,models]'"
    with pytest.raises(MissingExtra, match=r"'whyformer\[hf\]' tab-transformer-pytorch$"):
        require("transformers", "tab_transformer_pytorch", why="this")
    assert isinstance(error.value, ImportError) and not installed("transformers") and installed("PIL")


# What each feature says without its library


def own_modules() -> dict[str, Any]:
    """The imported modules of whyformer, by their names."""
    return {name: module for name, module in sys.modules.items() if name.startswith("whyformer.")}


@contextmanager
def imports_forgotten() -> Iterator[None]:
    """Modules that are imported meanwhile leave ``sys.modules``, and packages (``wf.tcav``) are as they were."""
    before, results = own_modules(), {**RESULTS}
    packages = [(vars(module), {**vars(module)}) for module in (wf, *before.values()) if hasattr(module, "__path__")]
    yield
    for name in own_modules().keys() - before.keys():
        del sys.modules[name]
    sys.modules.update(before)
    RESULTS.update(results)
    for names, known in packages:
        for name in names.keys() - known.keys():
            del names[name]
        names.update(known)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Libraries are as if they were not installed. Modules imported meanwhile are forgotten: they hold others anew."""

    def hidden(*names: str) -> None:
        for module in [*sys.modules, *names]:
            root = module.split(".")[0]
            if root in names:
                monkeypatch.setitem(sys.modules, module, None)
            elif module.startswith(("whyformer.views.figure", "whyformer.serve")):  # whose doors open on import
                del sys.modules[module]

    with imports_forgotten():
        yield hidden


def test_what_is_imported_meanwhile_is_forgotten() -> None:
    """A class whose module is not in ``sys.modules`` cannot read its own annotations."""
    inside = vars(wf.concepts)
    with imports_forgotten():  # what this test takes away comes back
        sys.modules.pop("whyformer.concepts.concept_vectors", None)
        vars(wf).pop("tcav", None)
        inside.pop("concept_vectors", None)
        with imports_forgotten():
            assert wf.tcav.__module__ in sys.modules and "concept_vectors" in inside
        assert "tcav" not in vars(wf) and "concept_vectors" not in inside


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> wf.Explainer:
    return wf.Explainer(folders.bert(), folders.tokenizer(tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="module")
def words(bert: wf.Explainer) -> Any:
    return bert.explain("the movie was good", method="raw_attention")


def vit(method: str, **options: Any) -> Any:
    return wf.explain(folders.vit(), {"pixel_values": torch.zeros(1, 3, 32, 32)}, method=method, **options)


def command(*arguments: Any) -> None:
    """What ``whyformer`` ends in; it must not have begun to load or compute."""
    shown = CliRunner().invoke(app, [str(a) for a in arguments])
    assert shown.exit_code == 1 and "Traceback" not in shown.output
    raise MissingExtra(*re.fullmatch(r"(.*?) needs (.*?): (pip .*)", " ".join(shown.stderr.split())).groups())  # type: ignore[union-attr]


def tcav() -> Any:
    return wf.tcav(None, layer=0, concepts={"a": ["x"]}, random_sets=[["y"]], class_inputs=["z"], target=0)


def permutation() -> Any:
    model = type("Model", (), {"predict": staticmethod(lambda table: np.zeros(4))})()
    return wf.feature_permutation(model, np.zeros((4, 2)), np.zeros(4))


def saved_table(library: str, folder: Path) -> Any:
    source = demo.model_folder("adult")
    for path in source.iterdir():
        text = path.suffix != ".safetensors" and path.name == "config.json"
        data = path.read_bytes()
        (folder / path.name).write_bytes(data.replace(b"rtdl_revisiting_models", library.encode()) if text else data)
    from whyformer.tables.table_results import load_model

    return load_model(folder)


def sentence_transformer(folder: Path) -> Any:
    from whyformer.cli._options import load

    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}', encoding="utf-8")
    return load("encoder", str(folder))


def server() -> Any:
    import whyformer.serve

    return whyformer.serve


# Name → libraries that are missing, the extras (or packages) that the command must name, what is asked for.
Feature = Callable[[Any, Path], Any]
FEATURES: dict[str, tuple[str, str, Feature]] = {
    "save png": ("matplotlib", "plot", lambda words, at: words.save(at / "x.png")),
    "plot": ("matplotlib", "plot", lambda words, at: words.plot()),
    "to_frame": ("pandas", "tabular", lambda words, at: words.to_frame()),
    "to_shap": ("shap", "shap", lambda words, at: words.to_shap()),
    "shap": ("shap", "shap", lambda words, at: vit("shap", algorithm="permutation", evaluations=40)),
    "vit_cx": ("sklearn", "eval", lambda words, at: vit("vit_cx")),
    "tcav": ("sklearn", "eval", lambda words, at: tcav()),
    "permutation": ("sklearn", "eval", lambda words, at: permutation()),
    "image file": ("PIL", "hf", lambda words, at: wf.explain(folders.vit(), at / "x.png", folders.image_processor())),
    "sentiment": ("transformers", "hf", lambda words, at: demo.load_sentiment()),
    "textures": ("whyformer_models", "models", lambda words, at: demo.load_textures()),
    "adult": ("whyformer_models rtdl_revisiting_models", "models,tabular", lambda words, at: demo.load_adult()),
    "saved tab": (
        "tab_transformer_pytorch",
        "tab-transformer-pytorch",
        lambda words, at: saved_table("tab_transformer_pytorch", at),
    ),
    "sentences": ("sentence_transformers", "sentence-transformers", lambda words, at: sentence_transformer(at)),
    "dataset": ("pyarrow", "batch", lambda words, at: wf.explain_dataset(None, ["a"], out=at)),
    "cluster": ("ray", "ray", lambda words, at: wf.explain_dataset(None, ["a"], out=at, engine="ray")),
    "server": ("fastapi uvicorn", "web", lambda words, at: server()),
    "$ demo": ("transformers whyformer_models", "hf,models", lambda words, at: command("demo")),
    "$ serve": ("fastapi uvicorn whyformer_models", "web,models", lambda words, at: command("serve")),
    "$ proxy": (
        "httpx opentelemetry",
        "web,otel",
        lambda words, at: command("proxy", "--server", "http://localhost:1", "--trace"),
    ),
    "$ explain": ("transformers whyformer_models", "hf,models", lambda words, at: command("explain", "text", "good")),
    "$ explain out": (
        "matplotlib whyformer_models",
        "plot",
        lambda words, at: command("explain", "text", "good", "--out", at / "x.png"),
    ),
    "$ tcav": ("sklearn whyformer_models", "models,eval", lambda words, at: command("tcav")),
    "$ batch": (
        "pyarrow ray whyformer_models",
        "batch,ray",
        lambda words, at: command("batch", at / "x.csv", "--out", at / "out", "--engine", "ray"),
    ),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_without_its_library_a_feature_names_the_command(
    feature: str, words: Any, without: Callable[..., None], tmp_path: Path
) -> None:
    libraries, extras, ask = FEATURES[feature]
    without(*libraries.split())
    with pytest.raises(MissingExtra) as error:
        ask(words, tmp_path)
    wanted = extras if "-" in extras else f"'whyformer[{extras}]'"
    assert str(error.value).endswith(f": pip install {wanted}")


def test_every_library_has_a_feature() -> None:
    named = {name for libraries, *_ in FEATURES.values() for name in libraries.split()}
    assert named | {"anywidget"} == set(LIBRARIES)


def test_a_widget_without_anywidget_is_the_page_and_says_why_nobody_answers(
    words: Any, without: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = words.view()
    without("anywidget")
    monkeypatch.setattr("whyformer.views.html.live._has_kernel", lambda: True)
    notebook.widget_kind.cache_clear()
    assert view.widget() is view
    with pytest.warns(UserWarning, match=r"not answered: pip install 'whyformer\[notebook\]'"):
        assert view.widget(lambda target: None) is view
    notebook.widget_kind.cache_clear()


def test_what_needs_no_extra_works_without_any(words: Any, without: Callable[..., None], tmp_path: Path) -> None:
    without(*(set(LIBRARIES) - {"transformers"}))  # which the model is of
    explained = wf.explain(folders.vit(), {"pixel_values": torch.zeros(1, 3, 32, 32)})
    for name in ("x.html", "x.json", "x.npz"):
        assert explained[0].save(tmp_path / name).stat().st_size > 100
    assert wf.load(tmp_path / "x.json").ranked() == explained[0].ranked()
    words.show()
