"""XAI-Units (Lee et al. 2025, arXiv:2506.01059): tables whose models were written by hand, with known attributions.

Units, models, metrics and the loop over them are those of the package ``xaiunits``; its captum methods run here as
well. Trained models are the authors' MLPs (demo/examples/tabular.py), with a learning rate of 1e-3 instead of 1e-5. The
units of images and texts are not run.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr
from importlib import import_module
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import whyformer as wf
from bench.measures.sets import cloned

Row = dict[str, Any]
FEATURES, SAMPLES, HELD_OUT, CLASSES = 10, 4000, 400, 5  # as in demo/examples/tabular.py of the package
WIDTH, LAYERS, EPOCHS, PATIENCE, BATCH, RATE = 100, 4, 100, 3, 256, 1e-3  # of trained models; at least so many epochs
UNITS: dict[str, dict[str, Any]] = {
    "WeightedFeatures": {},
    "Conflicting": {},
    "InteractingFeature": {"interacting_features": [[i, i + 1] for i in range(0, FEATURES, 2)]},
    "UncertaintyAware": {"common_features": 5},
    "ShatteredGradients": {"weight_scale": 50},
    "PertinentNegatives": {"pn_features": list(range(5))},
    "BooleanAnd": {},
    "BooleanOr": {},
}
OURS: dict[str, dict[str, Any]] = {
    "input_x_gradient": {},
    "attn_lrp": {},
    "integrated_gradients": {},
    "occlusion": {},
    "two_ended": {},
    "shap": {"evaluations": 1024, "batch_size": 1024},  # exact for ten columns
}
MASKING = ("occlusion", "two_ended", "shap")
CAPTUM = ("DeepLift", "InputXGradient", "IntegratedGradients", "KernelShap", "ShapleyValueSampling", "Lime")
# They import torchvision, cv2 and trl, which units of tables do not use.
LEFT_OUT = ("xaiunits.datagenerator.image_generation", "xaiunits.datagenerator.text_datasets")
LINEAR = "Lime (linear)"  # the package also runs LIME with least squares instead of the lasso


def package(folder: Path) -> Any:
    """Import xaiunits, installed or from a clone, without its units of images and texts."""
    source = cloned(folder, "xaiunits_public", "src") / "src"
    if str(source) not in sys.path:
        sys.path.insert(0, str(source))
    for name in LEFT_OUT:
        sys.modules.setdefault(name, MagicMock())
    try:
        return import_module("xaiunits.datagenerator"), import_module("xaiunits.pipeline")
    except ImportError as error:
        raise SystemExit(f"{error}. XAI-Units needs: pip install captum==0.7.0 sympy") from error


def scores_of(model: nn.Module, rows_NF: Tensor, target_N: list[int], base_NF: Tensor, name: str) -> Tensor:
    """Explain rows by a method of whyformer; rows with the same baseline and target are explained together."""
    scores_NF = torch.zeros_like(rows_NF)
    columns = [f"x{number}" for number in range(rows_NF.shape[1])]
    keys = [(target, *base.tolist()) for target, base in zip(target_N, base_NF, strict=True)]
    for target, *base in dict.fromkeys(keys):
        chosen = [number for number, key in enumerate(keys) if key == (target, *base)]
        how = {**OURS[name], "method": name, "target": target, "scalar": "logit", "progress": False}
        if name in MASKING and any(base):  # columns of a table are masked by the values of a reference row
            reference = [dict(zip(columns, base, strict=True))]
            table = wf.Table(numerical=columns, reference=reference)
            found = wf.explain(model, rows_NF[chosen].numpy(), processor=table, **how)
        else:
            if name == "integrated_gradients":
                how["baseline"] = torch.tensor(base)
            found = wf.explain(model, rows_NF[chosen], **how)
        scores_NF[chosen] = torch.as_tensor(np.array([why.scores for why in found]), dtype=scores_NF.dtype)
    return scores_NF


def method_class(name: str) -> type:
    """Return a class that the loop of xaiunits can run, as it runs those of captum."""

    class Method:
        def __init__(self, model: nn.Module) -> None:
            self.forward_func, self.kwargs = model, {}

        def generate_input(self, feature_inputs: Tensor, y_labels: Any, target: Any, context: Any) -> None:
            self.targets = [0] * len(feature_inputs) if target is None else torch.as_tensor(target).tolist()
            zeros = torch.zeros_like(feature_inputs)
            self.base_NF = zeros if not context else context.get("baseline", zeros)

        def attribute(self, inputs: Any) -> Any:
            if isinstance(inputs, tuple):  # captum's max-sensitivity
                return (self.attribute(inputs[0]),)
            repeats = len(inputs) // len(self.targets)  # it repeats every row for its perturbations
            targets = [target for target in self.targets for _ in range(repeats)]
            base_NF = self.base_NF.repeat_interleave(repeats, 0)
            return scores_of(self.forward_func, inputs.detach(), targets, base_NF, name)

    Method.__name__ = name
    return Method


def contenders() -> list[Any]:
    """Classes of all methods: captum's as in the package's own example, then ours."""
    attributions = import_module("captum.attr")
    regression = import_module("captum._utils.models.linear_model").SkLearnLinearRegression()
    wrap = import_module("xaiunits.methods").wrap_method
    lime = wrap(attributions.Lime, class_params={"interpretable_model": regression}, name=LINEAR, pre_fix="")
    return [getattr(attributions, name) for name in CAPTUM] + [lime] + [method_class(name) for name in OURS]


def fitted(train: Any, held_out: Any, outputs: int, seed: int) -> nn.Module:
    """Train an MLP until the loss on rows held out has not fallen for three epochs, but for 100 epochs at least."""
    (rows_NF, labels_N), (tested_NF, known_N) = train[:][:2], held_out[:][:2]
    torch.manual_seed(seed)
    sizes = [rows_NF.shape[1], *[WIDTH] * LAYERS, outputs]
    layers = [{"type": "Linear", "in_features": a, "out_features": b} for a, b in pairwise(sizes)]
    config = [entry for layer in layers for entry in (layer, {"type": "ReLU"})][:-1]
    model: nn.Module = import_module("xaiunits.model").DynamicNN(config)
    optimizer, best, waited, epoch = torch.optim.Adam(model.parameters(), RATE), float("inf"), 0, 0

    def loss(rows_BF: Tensor, labels_B: Tensor) -> Tensor:
        out = model(rows_BF).squeeze(-1)
        return F.mse_loss(out, labels_B) if outputs == 1 else F.cross_entropy(out, labels_B)

    while epoch < EPOCHS or waited < PATIENCE:
        for batch in torch.randperm(len(rows_NF)).split(BATCH):
            optimizer.zero_grad()
            loss(rows_NF[batch], labels_N[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            now = float(loss(tested_NF, known_N))
        waited, best, epoch = (0 if now < best else waited + 1), min(best, now), epoch + 1
    return model.eval()


def rows_of(folder: Path, rows: int, seeds: int, trained: bool = False) -> Iterator[Row]:
    """Yield one row per unit and method: for each seed, the mean of the unit's own metric over the first test rows."""
    generator, pipeline = package(folder)
    methods = contenders()
    for unit, options in UNITS.items():
        values: dict[str, list[float]] = {method.__name__: [] for method in methods}
        for seed in range(seeds):
            data = getattr(generator, f"{unit}Dataset")(n_features=FEATURES, n_samples=SAMPLES, seed=seed, **options)
            test, held_out, train = data.split([rows / SAMPLES, HELD_OUT / SAMPLES, 1 - (rows + HELD_OUT) / SAMPLES])
            classes = CLASSES if unit == "UncertaintyAware" else 1
            model = fitted(train, held_out, classes, seed) if trained else data.generate_model()
            for method in methods:
                found = measured(pipeline, test, model, method, seed, rows, "predicted_class" if classes > 1 else None)
                values[method.__name__].append(round(found, 6))
        for name, found in values.items():
            by = "whyformer" if name in OURS else "captum"
            model_name = {"model": "trained"} if trained else {}
            yield {"part": "xai_units", "unit": unit, "by": by, "method": name, "values": found, "rows": rows,
                   **model_name}  # fmt: skip


def measured(pipeline: Any, test: Any, model: Any, method: Any, seed: int, batch: int, target: str | None) -> float:
    """Return the mean of the unit's own metric, by the loop of the package."""
    results = pipeline.Results()
    experiment = pipeline.Experiment(test, [model], [method], metrics=None, method_seeds=[seed], name="unit")
    run = pipeline.ExperimentPipeline(experiment, batch_size=batch, results=results, default_target=target).run
    with warnings.catch_warnings(), redirect_stderr(StringIO()):  # progress bars
        warnings.simplefilter("ignore")
        run()
    return float(results.data["value"].mean())
