"""What ``compiled=True`` gives: a whole call of explain() against a plain eager forward, and whether it says the same.

    python -m bench.compiled [--device cuda] [--batches 1 8] [--rounds 30] [--dtypes float32 tf32 bfloat16]
                             [--only times|sweep]

First a table of times: random weights of BERT-base (128 tokens, as strings through a word-level tokenizer) and ViT-B
(224 × 224 tensors); the fastest of interleaved rounds, in each of which everything is called twice and timed the
second time. "bare" is the model's own forward and backward as a CUDA graph, which no explanation by gradients can be
quicker than; tf32 is float32 with products in TF32. Then a sweep: lengths that share a graph, targets, weights changed
in place, a parameter replaced, another dtype, two threads. It ends with an error if any is off.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import whyformer as wf
from bench.engine import TOKENS, backward_to_activations, bert, vit
from bench.timing import fastest, machine
from tests.support.eager_graph import recorded_on_cpu
from whyformer.compiled.forms import apart

METHOD = "generic_attention"
PRECISIONS = ["float32", "tf32", "bfloat16"]
NEAR = 2e-3  # of the largest score: other kernels for other shapes, in float32


def tokenizer(words: int = 20000) -> Any:
    """Words that are numbers; there is nothing to download."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: i for i, word in enumerate([*special, *map(str, range(words - len(special)))])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=512, model_input_names=inputs, **names)


def text(length: int, seed: int = 0) -> str:
    """So many tokens, [CLS] and [SEP] included."""
    return " ".join(map(str, np.random.default_rng(seed).integers(1000, 19000, length - 2)))


def synced(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
    def timed() -> object:
        out = run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return out

    return timed


def off(plain: Any, replayed: Any) -> float:
    """The largest difference of the scores, of the largest one."""
    pairs = zip(*([x] if isinstance(x, wf.Explanation) else x for x in (plain, replayed)), strict=True)
    return max(apart(a, b) for a, b in pairs)


def case(name: str, batch: int, device: torch.device) -> tuple[nn.Module, Any, Any, dict[str, torch.Tensor]]:
    """Model, processor, what is explained, and the tensors of a plain forward."""
    model = (bert if name == "bert" else vit)("sdpa")[0].to(device)
    if name == "vit":
        pixels = {
            "pixel_values": torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0)).to(device)
        }
        return model, None, pixels, pixels
    words = tokenizer()
    texts = [text(TOKENS, seed) for seed in range(batch)]
    tensors = {k: v.to(device) for k, v in words(texts, return_tensors="pt").items()}
    return model, words, texts[0] if batch == 1 else texts, tensors


def bare_graph(model: nn.Module, tensors: dict[str, torch.Tensor], rounds: int) -> float:
    """Milliseconds of the model's own forward and backward to activations, replayed."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    model.requires_grad_(False)
    try:
        with torch.cuda.stream(stream):
            for _ in range(3):
                backward_to_activations(model, tensors, freeze=False)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            backward_to_activations(model, tensors, freeze=False)
    finally:
        model.requires_grad_(True)
    return 1000 * fastest({"bare": synced(graph.replay, torch.device("cuda"))}, rounds, before=1)["bare"]


def times(batches: list[int], rounds: int, device: torch.device, precision: str) -> None:
    for name in ("bert", "vit"):
        for batch in batches:
            model, processor, inputs, tensors = case(name, batch, device)
            if precision == "bfloat16":
                model = model.bfloat16()
                tensors = {k: t.bfloat16() if t.is_floating_point() else t for k, t in tensors.items()}
            plain, compiled = wf.Explainer(model, processor), wf.Explainer(model, processor, compiled=True)
            started = time.perf_counter()
            compiled.explain(inputs, method=METHOD)
            first = time.perf_counter() - started
            away = off(plain.explain(inputs, method=METHOD), compiled.explain(inputs, method=METHOD))
            form = compiled.forms[-1]

            def forward(model: nn.Module = model, tensors: dict[str, torch.Tensor] = tensors) -> None:
                with torch.no_grad():
                    model(**tensors)

            contenders = {
                "forward": synced(forward, device),
                "plain": lambda: plain.explain(inputs, method=METHOD),  # noqa: B023 (called in this turn)
                "compiled": lambda: compiled.explain(inputs, method=METHOD),  # noqa: B023
            }
            ms = {who: 1000 * seconds for who, seconds in fastest(contenders, rounds, before=1).items()}
            bare = bare_graph(model, tensors, rounds) if device.type == "cuda" else 0.0
            print(
                f"| {name} | {precision} | {batch} | {ms['forward']:.2f} | {ms['plain']:.2f} | {bare:.2f} | "
                f"{ms['compiled']:.2f} | {ms['compiled'] / ms['forward']:.2f} | {away:.1e} | {form.bytes / 2**20:.0f} |"
            )
            print(f"  {form}; first call {first:.2f} s; {split(compiled, inputs)}", file=sys.stderr, flush=True)


def split(explainer: wf.Explainer, inputs: Any, rounds: int = 20) -> str:
    """Milliseconds of the replay by itself, and how long before it begins and after it ends."""
    assert explainer.graphs is not None
    form = next(reversed(explainer.graphs.forms.values()))
    if form.recording is None:
        return form.why_not
    graph = form.recording.graph
    alone = []
    for _ in range(rounds):
        started = time.perf_counter()
        graph.replay()
        graph.output.cpu()
        alone.append(time.perf_counter() - started)
    return f"replay and transfer alone {1000 * min(alone):.2f} ms"


class Sweep:
    """What has to hold, line by line."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.failed = device, 0

    def line(self, what: str, holds: bool, figure: str = "") -> None:
        self.failed += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {what} {figure}", flush=True)

    def hold(self, what: str, explainer: wf.Explainer, inputs: Any, **how: Any) -> None:
        """The compiled explanation is the plain one, and came from a graph."""
        expected = wf.Explainer(explainer.model, explainer.processor).explain(inputs, **how)
        before = sum(form.replays for form in explainer.forms)
        away = off(expected, explainer.explain(inputs, **how))
        replayed = sum(form.replays for form in explainer.forms) > before
        self.line(what, away < NEAR and replayed, f"{away:.1e}{'' if replayed else ' (without a graph)'}")

    def say(self, what: str, explainer: wf.Explainer) -> None:
        """The same, from a graph or not."""
        expected = wf.Explainer(explainer.model, explainer.processor).explain(text(100), method=METHOD)
        away = off(expected, explainer.explain(text(100), method=METHOD))
        self.line(what, away < NEAR, f"{away:.1e}")

    def run(self) -> None:
        torch.manual_seed(0)
        from transformers import BertConfig, BertForSequenceClassification

        size: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "num_labels": 5}
        model = BertForSequenceClassification(BertConfig(intermediate_size=512, **size)).to(self.device).eval()
        explainer = wf.Explainer(model, tokenizer(), compiled=True)
        for method in sorted({METHOD, "grad_sam", "gradient_rollout", "attention_rollout", "raw_attention"}
                             | {"attention_x_gradient", "attention_gradcam"}):  # fmt: skip
            explainer.explain(text(40), method=method)
            self.hold(f"{method}, another text", explainer, text(45, 3), method=method)
        self.line("one graph each", len(explainer.forms) == 7 and all(form.graph for form in explainer.forms))
        explainer = wf.Explainer(model, tokenizer(), compiled=True)
        explainer.explain(text(100), method=METHOD)
        for length in (97, 128, 110, 100):
            self.hold(f"{length} tokens", explainer, text(length, length), method=METHOD)
        self.line("they share a graph", sum(form.graph for form in explainer.forms) == 1)
        lengths = [text(n, n) for n in (20, 90, 128, 55, 70)]
        explainer.explain(lengths, method=METHOD)
        self.hold("five texts of several lengths", explainer, lengths[::-1], method=METHOD)
        for target in (0, 4, "LABEL_2"):
            self.hold(f"target {target!r}", explainer, text(100), method=METHOD, target=target)
        explainer.explain(text(100), method=METHOD, target=(0, 1))
        self.hold("target (3, 2)", explainer, text(100), method=METHOD, target=(3, 2))
        for scalar in ("probability", "log_odds"):
            explainer.explain(text(100), method=METHOD, scalar=scalar)
            self.hold(scalar, explainer, text(101, 4), method=METHOD, scalar=scalar)
        self.changes(model, explainer)
        self.threads(explainer)
        self.stopped(model)

    def changes(self, model: nn.Module, explainer: wf.Explainer) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        graphs = sum(form.graph for form in explainer.forms)
        self.hold("weights changed in place", explainer, text(100), method=METHOD)
        self.line("nothing was recorded for it", sum(form.graph for form in explainer.forms) == graphs)
        head = model.get_submodule("classifier")
        head.weight = nn.Parameter(head.weight.detach().flip(0).clone())
        self.say("a parameter replaced", explainer)
        self.hold("and recorded again", explainer, text(100), method=METHOD)
        hook = head.register_forward_hook(lambda m, args, out: out.roll(1, 1))
        self.say("a hook", explainer)
        self.hold("and recorded again", explainer, text(100), method=METHOD)
        hook.remove()
        model.double()
        self.say("float64", explainer)
        self.hold("and recorded again", explainer, text(100), method=METHOD)
        model.float()
        explainer.explain(text(100), method=METHOD)
        self.hold("float32 again", explainer, text(100), method=METHOD)

    def threads(self, explainer: wf.Explainer) -> None:
        plain, wrong = wf.Explainer(explainer.model, explainer.processor), []
        texts = [text(n, n) for n in range(97, 129, 4)]
        expected = plain.explain(texts, method=METHOD)

        def ask(start: int) -> None:
            for _ in range(20):
                for i in range(start, len(texts), 2):
                    away = off(expected[i], explainer.explain(texts[i], method=METHOD))
                    if away > NEAR:
                        wrong.append(away)

        threads = [threading.Thread(target=ask, args=(start,)) for start in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.line("two threads", not wrong, str(wrong[:4]))

    def stopped(self, model: nn.Module) -> None:
        """A model that asks the device in its forward: said, and explained all the same; the device stays in order."""

        class Asking(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model, self.config = model, model.config

            def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
                out: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
                return out if float(out.detach().sum()) > -1e9 else -out

        explainer = wf.Explainer(Asking(), tokenizer(), compiled=True)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            result = explainer.explain(text(50), method=METHOD)
        said = [str(w.message) for w in heard if "no CUDA graph" in str(w.message)]
        holds = len(said) == 1 and "no CUDA graph" in result.warnings[-1]
        self.line("a model that cannot be recorded", holds, str(said))
        torch.nn.functional.dropout(torch.ones(8, device=self.device), 0.5, True).sum().item()
        again = wf.Explainer(model, tokenizer(), compiled=True)
        again.explain(text(50), method=METHOD)
        self.hold("another is recorded after it", again, text(51), method=METHOD)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--dtypes", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--only", choices=["times", "sweep"])
    args = parser.parse_args()
    device = torch.device(args.device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{where}, {machine()}")
    with contextlib.nullcontext() if device.type == "cuda" else recorded_on_cpu():  # there, to try this file out
        failed = measured(args, device)
    sys.exit(1 if failed else 0)


def measured(args: argparse.Namespace, device: torch.device) -> int:
    failed = 0
    if args.only != "times":
        sweep = Sweep(device)
        sweep.run()
        failed = sweep.failed
        print(f"{failed} failed" if failed else "all hold")
    if args.only != "sweep":
        print("| model | dtype | batch | ms: forward | explain | bare graph | compiled | ÷ forward | off | MB |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for precision in args.dtypes:
            torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
            times(args.batches, args.rounds, device, precision)
        torch.set_float32_matmul_precision("highest")
    return failed


if __name__ == "__main__":
    main()
