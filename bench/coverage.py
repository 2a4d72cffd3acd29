"""What the documents behind this library describe, tried as their readers would: the calls of docs/reports/coverage.md.

    python -m bench.coverage [--rows 4 20]

Each row's call runs as it is written on the page, on shipped and tiny models, and its result is held against a formula
that is written out here or in tests/references. What came of it is written into the last column of the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from functools import reduce
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import shap
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.special import entr
from scipy.stats import spearmanr

import whyformer as wf
from tests.checks.test_retrained import Finder, Pooled, marked
from tests.heads import patterned
from tests.methods.test_copied_token import SHARP, induction_model
from tests.models import CASES
from tests.models.case import softmax_outputs
from tests.references import generic_attention_streams as streams
from tests.tables import models as tables
from whyformer import heads
from whyformer.checks.retrained import EVEN, GUIDES, LSTM
from whyformer.demo.pictures import picture, swatch
from whyformer.engines.gradient.feature_maps import grid_artefact
from whyformer.errors import NotOffered, WhyformerError
from whyformer.shapes import Array
from whyformer.views.marks import HeadColours

mpl.use("Agg")
PAGE = Path(__file__).parents[1] / "docs" / "reports" / "coverage.md"
TEXT = "I cannot wait for next time"
TEXTS = ["I like the movie", "She hates the book", "This is so boring", TEXT, "You look extremely confused"]
BRIEF: dict[str, Any] = {"epochs": 1, "guide_epochs": 1, "lambdas": (0.1,), "permutations": 5, "tested": 5}


def plain(model: Any) -> Any:
    """The model with attention written out, as transformers returns it."""
    model.set_attn_implementation("eager")
    return model


def last_row(at: Things) -> torch.Tensor:
    """(1, 1, rows, columns) the last layer's attention of [CLS] to the patches, mean over heads, by transformers."""
    with torch.no_grad():
        vit = plain(wf.demo.load_textures()[0])
        attention = vit(**at["processor"](at["image"], return_tensors="pt"), output_attentions=True).attentions[-1]
    row = attention[0].mean(0)[0, 1:]
    return row.reshape(1, 1, round(len(row) ** 0.5), -1)


MADE: dict[str, Callable[[Things], Any]] = {
    "model": lambda at: wf.demo.load_sentiment()[0],
    "tokenizer": lambda at: wf.demo.load_sentiment()[1],
    "vit": lambda at: wf.demo.load_textures()[0],
    "processor": lambda at: wf.demo.load_textures()[1],
    "adult": lambda at: wf.demo.load_adult()[0],
    "table": lambda at: wf.demo.load_adult()[1],
    "rows": lambda at: wf.demo.census.adult_rows()[:12],
    "image": lambda at: at["images"][0],
    "images": lambda at: [Image.fromarray(picture("horse", "striped", seed)) for seed in range(40)],
    "concepts": lambda at: {
        name: [Image.fromarray(swatch(name, seed)) for seed in range(120)] for name in ("striped", "dotted", "bubbly")
    },
    "pairs": lambda at: [("striped", "dotted"), ("bubbly", "striped"), ("dotted", "bubbly")],
    "by_row": lambda at: wf.explain(at["adult"], at["rows"], at["table"], method="attention_rollout"),
    "seen": lambda at: wf.Explainer(at["vit"], at["processor"]).record(at["image"]),
    "first": lambda at: wf.explain(at["vit"], at["image"], at["processor"], method="raw_attention"),
    "last_row": last_row,
    "by_function": lambda at: wf.explain(
        at["model"], TEXT, at["tokenizer"], method="value_zeroing", distance=lambda a, b: (a - b).norm(dim=-1)
    ),
    "weighted_norms": lambda at: wf.explain(
        at["model"], TEXT, at["tokenizer"], method="value_norms", weight="gradient"
    ),
    "vit_cx": lambda at: wf.explain(at["vit"], at["image"], at["processor"], method="vit_cx"),
    "record": lambda at: wf.Explainer(at["model"], at["tokenizer"]).record(TEXT),
    "methods": lambda at: wf.explain(at["model"], TEXT, at["tokenizer"], method=["grad_sam", "shap"]),
    "t5": lambda at: CASES["t5_cls"].build("sdpa"),
    "t5_inputs": lambda at: CASES["t5_cls"].inputs(),
    "lxmert": lambda at: CASES["lxmert"].build("eager"),
    "boxes": lambda at: CASES["lxmert"].inputs(),
    "own": lambda at: CASES["looped_heads"].build(None),
    "vectors": lambda at: CASES["looped_heads"].inputs(),
    "finder": lambda at: Finder().eval(),
    "signs": lambda at: marked(60, seed=1),
    "held_out": lambda at: marked(40, seed=2),
    "lstm": lambda at: Pooled().eval(),
    "ids": lambda at: {"input_ids": torch.randint(2, 20, (60, 7), generator=torch.Generator().manual_seed(0))},
    "classes": lambda at: (at["ids"]["input_ids"][:, 0] > 10).long().tolist(),
    "patterned": lambda at: patterned.encoder(),
    "sentences": lambda at: patterned.sentences(),
    "labels": lambda at: ["positive", "negative", "negative", "positive", "negative"],
    "copier": lambda at: induction_model(0, SHARP),
    "tab_transformer": lambda at: tables.LAYOUTS["lucidrains_tab"].build(),
    "saint": lambda at: tables.saint(),
    "few": lambda at: tables.rows(3),
    "columns": lambda at: tables.table(reference=tables.rows(9, seed=3)),
}


class Things(dict[str, Any]):
    """What the calls name, made when it is named first."""

    def __init__(self) -> None:
        super().__init__(wf=wf, heads=heads, text=TEXT, texts=TEXTS, brief=BRIEF)

    def __missing__(self, name: str) -> Any:
        self[name] = MADE[name](self)
        return self[name]


def close(found: Any, expected: Any, error: float = 1e-4) -> bool:
    found, expected = (np.asarray(x, float) for x in (found, expected))
    np.testing.assert_allclose(found, expected, rtol=0, atol=error * np.abs(expected).max())
    return True


# By hand, from the attention that a model of transformers reports.


def maps(at: Things) -> tuple[list[Array], list[Array]]:
    """(H, N, N) attention of the text in every layer, and the gradient of the predicted logit at it."""
    if "maps" not in at:
        model, inputs = plain(wf.demo.load_sentiment()[0]), dict(at["tokenizer"](TEXT, return_tensors="pt"))
        out = model(**inputs, output_attentions=True)
        gradients = torch.autograd.grad(out.logits[0].max(), out.attentions)
        at["maps"] = tuple([m[0].detach().double().numpy() for m in each] for each in (out.attentions, gradients))
    return at["maps"]  # type: ignore[no-any-return]


def weighted(at: Things) -> list[Array]:
    return [a * g for a, g in zip(*maps(at), strict=True)]


def columns_of(at: Things) -> list[Array]:
    """(H, Q, K) attention between the columns of the first row, in every layer."""
    with softmax_outputs() as found, torch.no_grad():
        numbers, codes = at["table"].encode(at["table"].read(at["rows"][:1])[0])
        at["adult"](torch.tensor(numbers).float(), torch.tensor(codes))
    return [m.flatten(0, -3).numpy() for m in found]


def product(layers: Iterable[Array], sums_one: bool = False) -> Array:
    """Of A + I, the later layer from the left; with sums_one, of rows divided by their sums."""
    whole = [a + np.eye(len(a)) for a in layers]
    return reduce(lambda below, a: a @ below, [a / a.sum(1, keepdims=True) if sums_one else a for a in whole])


# What holds of the result of each call.


def readings(found: Any, at: Things) -> None:
    layers = columns_of(at)
    close(found.scores, layers[0].mean(0).diagonal())
    how: dict[str, Any] = {"processor": at["table"], "method": "raw_attention"}
    close(wf.explain(at["adult"], at["rows"][0], layers=0, read="column_sum", **how).scores, layers[0].mean(0).sum(0))
    close(
        wf.explain(at["adult"], at["rows"][0], layers="mean", **how).scores, np.mean([m.mean(0)[0] for m in layers], 0)
    )


def cross_streams(found: Any, at: Things) -> None:
    layers = streams.layers_of("t5_cls", 0, 1)
    expected = streams.encoder_decoder(layers[:2], [tuple(layers[2:4]), tuple(layers[4:6])], "source", "target")  # type: ignore[list-item]
    for key, matrix in expected.items():
        close(found[0].matrix[key], matrix, 2e-5)


def architectures(found: Any, at: Things) -> None:
    for name in ("lxmert", "visual_bert", "detr"):
        each = wf.explain(CASES[name].build("eager"), CASES[name].inputs(), method="generic_attention")
        one = each[0][0] if isinstance(each[0], list) else each[0]
        assert (
            np.isfinite(one.scores).all() and one.scores.any() and len(set(one.units.stream)) > (name != "visual_bert")
        )


def coloured(found: Any, at: Things) -> None:
    (mark,) = found.panels[0].marks
    assert isinstance(mark, HeadColours)
    close(mark.maps_RC[0].ravel(), at["seen"].sites[-1].attention_BHQK[0, 0, 0, 1:])


def cam(found: Any, at: Things) -> bool:
    try:
        wf.explain(at["vit"], at["image"], at["processor"], method="grad_cam", layer="vit.layernorm")
    except WhyformerError as error:
        return "layer=None" in str(error) and scored(found, at)
    return False  # nothing behind the last attention has a gradient


def cls(found: Any, at: Things) -> bool:
    masked = wf.explain(at["model"], TEXT, at["tokenizer"], method="shap")
    return found.scores[0] == found.scores.sum() > 0 == masked.scores[0]


def every_method(found: Any, at: Things) -> None:
    """All but those that need an image or a table; methods that mask need replace=, as their error says."""
    for name in wf.list_methods():
        try:
            wf.explain(at["own"], at["vectors"], method=name)
        except NotOffered:
            assert name in {"grad_cam", "vit_cx"}, name
        except WhyformerError as error:
            assert "replace=" in str(error)
            wf.explain(at["own"], at["vectors"], method=name, replace="zero")


def agreement(found: Any, at: Things) -> None:
    lost = wf.feature_permutation(at["adult"], at["rows"], [r["income"] for r in at["rows"]], processor=at["table"])
    sizes: Any = wf.explain_global(at["adult"], at["rows"], at["table"], method="attn_lrp").to_frame()
    sizes = sizes.set_index("column").loc[list(lost.labels), "mean_size"]
    close(found.spearman, spearmanr(sizes, lost.mean).statistic, 1e-6)


def without_numbers(found: Any, at: Things) -> bool:
    every = wf.explain(at["tab_transformer"], at["few"][0], at["columns"], method="occlusion")
    numbers = [every.scores[every.units.labels.index(label)] for label in tables.NUMBERS]
    return set(found.units.unseen) == set(tables.NUMBERS) and all(numbers)


def held_by_two() -> dict[str, Any]:
    """What two processes say that hold a language model together, half of its heads each."""
    with tempfile.TemporaryDirectory() as folder:
        llama: Any = CASES["llama"].build("sdpa")
        llama.save_pretrained(Path(folder) / "model")
        code = "from pathlib import Path; from tests.support.two_processes import *; logged_main({}, Path({!r}))"
        run = [[sys.executable, "-c", code.format(rank, folder)] for rank in (0, 1)]
        both = [subprocess.Popen(command, cwd=PAGE.parents[2]) for command in run]
        for process in both:
            process.wait(600)
        return dict(json.loads((Path(folder) / "said-0.json").read_text()))


def several_processes(found: Any, at: Things) -> None:
    from tests.support.two_processes import inputs

    alone = wf.explain(CASES["llama"].build("sdpa"), inputs(), method="attn_lrp", target=1, scalar="logit")
    close(found["sharded"]["scored"]["attn_lrp"][0]["scores"], alone[0].scores)
    assert "runs some of the heads" in found["sharded"]["refused"]["generic_attention"]


def scored(found: Any, at: Things) -> bool:
    each = found if isinstance(found, list) else [found]
    return all(bool(np.isfinite(e.scores).all() and e.scores.any()) for e in each)


def drawn(found: Any, at: Things) -> bool:
    return "<svg" in found.to_html() and bool(found.plot().axes)


def maximised(found: Any, at: Things) -> bool:
    others = [wf.activation_maximization(at["vit"], u, processor=at["processor"], steps=20) for u in (0, ("layer", 2))]
    return all(each.value > each.start for each in (found, *others))


def debated(found: Any, at: Things) -> None:
    page = found.to_html()
    assert len(found.tests.inputs) == 5 and "Property 1" in page and "Property 2" in page


CHECKS: dict[int, Callable[[Any, Things], Any]] = {
    1: lambda found, at: close(found, F.interpolate(at["last_row"], size=(224, 224), mode="bilinear")[0, 0]),
    2: lambda found, at: close(found, np.mean([e.matrix for e in at["by_row"]], 0)),
    3: readings,
    4: lambda found, at: close(found, product(a.mean(0) for a in maps(at)[0])),
    5: lambda found, at: close(found, product((a.min(0) for a in maps(at)[0]), sums_one=True)),
    6: lambda found, at: close(found, product(w.clip(0).mean(0) for w in weighted(at))),
    7: lambda found, at: close(found, product((w.mean(0).clip(0) for w in weighted(at)), sums_one=True)),
    8: cross_streams,
    9: architectures,
    10: lambda found, at: (found.forwards, found.backwards) == (1, 1),
    11: scored,
    12: coloured,
    13: lambda found, at: scored(wf.explain(at["model"], TEXT, at["tokenizer"], **found.best), at),
    14: lambda found, at: drawn(found, at) and scored(at["weighted_norms"], at),
    15: drawn,
    16: lambda found, at: grid_artefact(found.detail, 8, of="steps") > 1.5,
    17: cam,
    18: lambda found, at: close(found.scores, at["by_function"].scores) and scored(at["vit_cx"], at),
    19: maximised,
    20: lambda found, at: close(found.scores, np.mean([w.clip(0).mean(-1) for w in weighted(at)], (0, 1))),
    21: lambda found, at: "cannot" in shap.plots.text(found, display=False) and shap.plots.bar(found, show=False),
    22: drawn,
    23: cls,
    24: lambda found, at: len({method.specificity for method in found.values()}) > 2,
    25: lambda found, at: [row.p < 0.05 for row in found.rows] == [True, True, False],
    26: drawn,
    27: every_method,
    28: debated,
    29: debated,
    30: lambda found, at: {LSTM, EVEN, *GUIDES} <= set(found.iloc[:, 0]),
    31: lambda found, at: "Attention contributes" in found.findings[0].text,
    32: lambda found, at: list(found.values()) == ["positional -1", "positional +1", "separator", "rare token"],
    33: lambda found, at: found.kept[-1] == 0 and (found.low < found.high).all(),
    34: lambda found, at: close([row["entropy"] for row in found], [entr(a).sum(-1).mean() for a in maps(at)[0]]),
    35: lambda found, at: (found.previous_token.argmax(), found.induction.argmax()) == (0, 2),
    36: several_processes,
    37: agreement,
    38: without_numbers,
    39: lambda found, at: close([e.scores.sum() for e in found], [e.value - e.base for e in found], 0.1),
}
BUT = {
    36: "partly: methods that read attention refuse a tensor-parallel model, with the reason; FSDP is untested",
    40: "no: left to textbooks",
}


def verdict(number: int, call: str, at: Things) -> str:
    """Try one row: "works", what is known not to, or how it failed."""
    try:
        if number in CHECKS:
            found = held_by_two() if number == 36 else eval(call, {}, at)  # its call runs in both processes
            assert CHECKS[number](found, at) is not False, "another result than by hand"
        return BUT.get(number, "works")
    except Exception as error:
        return f"fails: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", help="numbers of rows (default: all)")
    chosen = parser.parse_args().rows
    warnings.simplefilter("ignore")
    lines, at = PAGE.read_text(encoding="utf-8").splitlines(), Things()
    for place, line in enumerate(lines):
        cells = line.split("|")
        if len(cells) > 1 and cells[1].isdigit() and (chosen is None or int(cells[1]) in chosen):
            started = time.perf_counter()
            cells[-2] = verdict(int(cells[1]), cells[4].strip("`"), at)
            print(f"{cells[1]:>2} {cells[-2]} ({time.perf_counter() - started:.0f} s)", flush=True)
            lines[place] = "|".join(cells)
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
