"""A fact among others, asked for at the end: which method ranks the sentence first that the answer came from?

    python -m bench.needle --folder smol --cases 220 --out needle.jsonl     # goes on where it was interrupted
    python -m bench.needle --report needle.jsonl     # all rows of the tables in docs/reports/needle.md

The model is SmolLM2-135M-Instruct (bench/smollm2.py). "The price of the blue boat is 4817." stands among ten sentences
of the same form about other things and among neutral ones; the prompt asks for it. A case counts if the model says the
number, and says another one as soon as another stands in that sentence and nothing else has changed: then the sentence
is the cause. Explained is the number's first digit, which no other number begins with.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import whyformer as wf
from bench.needle_report import report
from bench.smollm2 import load
from whyformer.inputs.units import members, sentences

ADJECTIVES = "blue red green yellow white black brown pink grey purple golden wooden".split()
THINGS = "house boat box door car tent shop tower barn bus ship hotel".split()
RELATIONS = ["secret code", *"price name owner weight number colour guard symbol motto password".split()]
RELATIONS += "signal cargo prize".split()
PEOPLE = "The baker|The old teacher|A young sailor|The gardener|My neighbour|The postman|The doctor".split("|")
PEOPLE += ["A tourist"]
DEEDS = (
    "opened the door early|walked along the canal|bought some bread|waited for the bus|read the newspaper|"
    "closed the shop|painted the fence|fed the birds|looked for a lost umbrella|talked about the weather"
).split("|")
TIMES = "in the morning|on Monday|after lunch|before the rain came|in the evening|on the way home|last week".split("|")
FACTS = 11  # the needle and ten distractors
# Tokens wanted, of every 80 cases: most are short, so that hundreds of them can be explained on one core.
LENGTHS = [*[200, 200, 200, 200, 400] * 14, 200, 200, 200, 600, 600, 600, 600, 1000, 1000, 1990]

# One record of attention and its gradients serves the first group; each of the others has passes of its own.
RECORDED = (
    "generic_attention",
    "grad_sam",
    "attention_x_gradient",
    "gradient_rollout",
    "attention_gradcam",
    "raw_attention",
    "attention_rollout",
)
GRADIENTS = ("attn_lrp", "cp_lrp", "input_x_gradient", "saliency")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grad_sam(reduce=key)": ("grad_sam", {"reduce": "key"}),
    "attention_x_gradient(layers=mean)": ("attention_x_gradient", {"layers": "mean"}),
    "raw_attention(layers=mean)": ("raw_attention", {"layers": "mean"}),
}


@dataclass(frozen=True)
class Case:
    """A prompt, where its passage and its needle stand, and the number that is to be said."""

    prompt: str
    passage: tuple[int, int]
    needle: tuple[int, int]
    number: str
    other: str  # the number of another sentence, with another first digit

    def with_number(self, number: str) -> str:
        start, end = self.needle
        return self.prompt[:start] + self.prompt[start:end].replace(self.number, number) + self.prompt[end:]


def case_of(tokenizer: Any, seed: int, number: int, chat: bool) -> Case:
    rng = np.random.default_rng([seed, number])
    wanted = LENGTHS[number * 7 % len(LENGTHS)]  # in turn, so that any stretch of cases has all of them
    # No other number begins with the needle's first digit: it decides the answer.
    first = rng.permutation(np.arange(1, 10))
    firsts = [first[0], *rng.choice(first[1:], FACTS - 1)]
    numbers = [f"{digit}{rng.integers(1000):03d}" for digit in firsts]
    about = zip(*(rng.permutation(words)[:FACTS] for words in (RELATIONS, ADJECTIVES, THINGS)), strict=True)
    claims = [f"The {relation} of the {adjective} {thing} is" for relation, adjective, thing in about]
    facts = [f"{claim} {value}." for claim, value in zip(claims, numbers, strict=True)]
    question = claims[0].replace("The", "What is the", 1).removesuffix(" is") + "?"
    drawn = (" ".join(rng.choice(words) for words in (PEOPLE, DEEDS, TIMES)) + "." for _ in range(400))
    stories = list(dict.fromkeys(drawn))
    size = len(tokenizer(" ".join(facts))["input_ids"]) + (80 if chat else 45)  # the question, and the chat's marks
    while size < wanted or len(facts) < FACTS + 4:
        facts.append(stories.pop())
        size += len(tokenizer(facts[-1])["input_ids"])
    needle = facts[0]
    passage = " ".join(facts[i] for i in rng.permutation(len(facts)))
    prompt = f"{passage}\n\nQuestion: {question}\nAnswer: {claims[0]} "
    if chat:
        asked = [{"role": "user", "content": f"{passage}\n\n{question}"}]
        prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True) + f"{claims[0]} "
    start = prompt.index(passage)
    at = prompt.index(needle)
    return Case(prompt, (start, start + len(passage)), (at, at + len(needle)), numbers[0], numbers[1])


@torch.no_grad()
def caused(model: Any, tokenizer: Any, case: Case) -> bool:
    """The model answers, and by this sentence: with another number in it, it says that one.

    Would the model write the number, digit by digit? One pass over prompt and answer tells, and the second goes on from
    the cache of what both prompts begin with.
    """
    from transformers import DynamicCache

    changed = str(int(case.number[0]) % 9 + 1) + case.number[1:]
    asked = ((case.prompt, case.number), (case.with_number(changed), changed))
    start = len(tokenizer(case.prompt)["input_ids"])
    both = torch.tensor([tokenizer(prompt + number)["input_ids"] for prompt, number in asked], device=model.device)
    shared = int((both[0] != both[1]).nonzero()[0])
    cache = DynamicCache(config=model.config)
    model(both[:1, :shared], past_key_values=cache, logits_to_keep=1)
    for ids in both:
        rest = {"past_key_values": deepcopy(cache), "logits_to_keep": len(ids) - start + 1}
        said = model(ids[None, shared:], **rest).logits[0, :-1].argmax(1)
        if not torch.equal(said, ids[start:]):
            return False
    return True


AGGREGATES = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "positive": lambda scores: np.maximum(scores, 0).sum(),
    "size": lambda scores: np.abs(scores).sum(),
}


def judged(case: Case, explanation: wf.Explanation) -> dict[str, Any]:
    """Per aggregation, the needle's rank among the passage's sentences, among all, and among all but the first token.

    Ranks count from 1; a sentence with the same score stands above, so that a map that says nothing wins nothing.
    """
    spans = sentences(case.prompt)
    groups = members(explanation.units.spans, spans)
    needle = spans.index(case.needle)
    inside = np.array([case.passage[0] <= start < case.passage[1] for start, _ in spans])
    first = next(at for at, group in enumerate(groups) if group)
    scores, ranks = np.asarray(explanation.scores, float), {}
    for name, aggregate in AGGREGATES.items():
        whole = np.array([aggregate(scores[group]) if group else -np.inf for group in groups])
        sinkless = whole.copy()
        sinkless[first] = aggregate(scores[groups[first][1:]]) if len(groups[first]) > 1 else -np.inf
        shown = (whole[inside], whole, sinkless[inside], sinkless)
        place = int(inside[:needle].sum())
        ranks[name] = [
            int((values >= values[at]).sum()) for values, at in zip(shown, (place, needle, place, needle), strict=True)
        ]
    share = float(np.abs(scores[groups[first][0]]) / max(np.abs(scores).sum(), 1e-30))
    cost = explanation.cost
    return {"ranks": ranks, "first_token": share, "seconds": cost.seconds, "passes": [cost.forwards, cost.backwards]}


def explained(
    explainer: wf.Explainer, tokenizer: Any, case: Case, groups: list[list[str]], seed: int = 0
) -> dict[str, Any]:
    """What each method says, for the digit and for the digit rather than the one of another sentence."""
    right, wrong = (tokenizer(n[0], add_special_tokens=False)["input_ids"][0] for n in (case.number, case.other))
    rows: dict[str, Any] = {}
    for group in groups:
        contrast = group[0].startswith("contrast ")
        target = (right, wrong) if contrast else right
        methods = [name.removeprefix("contrast ") for name in group]
        plain = [name for name in methods if name not in VARIANTS]
        results = explainer.explain(case.prompt, target=target, method=plain, seed=seed) if plain else {}
        for name in methods:
            if name in VARIANTS:
                method, options = VARIANTS[name]
                results[name] = explainer.explain(case.prompt, target=target, method=method, **options)
        rows |= {("contrast " if contrast else "") + name: judged(case, each) for name, each in results.items()}
    return rows


def needs_maps(group: list[str]) -> bool:
    """Whether attention maps of every layer are held, which grow with the square of the length."""
    methods = (VARIANTS.get(name, (name,))[0] for name in (label.removeprefix("contrast ") for label in group))
    return any("attention" in need for name in methods for need in wf.list_methods()[name].needs)


def positions(case: Case) -> dict[str, bool]:
    """Whether the needle is the first or the last sentence of the passage."""
    return {"first": case.needle[0] == case.passage[0], "last": case.needle[1] == case.passage[1]}


def noted(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def rows_of(model: Any, tokenizer: Any, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row per case that was tried, in order, from the first that is not noted yet."""
    explainer = wf.Explainer(model, tokenizer)
    done = noted(given.out)
    part, parts = map(int, given.part.split("/"))
    right, number = sum(row["right"] for row in done), part + len(done) * parts
    while right < given.cases:
        case = case_of(tokenizer, given.seed, number, given.chat)
        started = time.perf_counter()
        row = {"case": number, "tokens": len(tokenizer(case.prompt)["input_ids"])}
        row["right"] = caused(model, tokenizer, case)
        if row["right"]:
            inside = [s for s in sentences(case.prompt) if case.passage[0] <= s[0] < case.passage[1]]
            row |= {"sentences": len(inside), "position": positions(case)}
            groups = [group for group in given.groups if row["tokens"] <= given.maps or not needs_maps(group)]
            row["methods"] = explained(explainer, tokenizer, case, groups, number)
            right += 1
        yield row | {"seconds": time.perf_counter() - started}
        number += parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where python -m bench.smollm2 FOLDER wrote the model; else from the package")
    parser.add_argument("--out", type=Path, help="one line per case; an interrupted run goes on")
    parser.add_argument("--part", default="0/1", help="every so manieth case: 0/2 and 1/2, with a file each, are all")
    parser.add_argument("--cases", type=int, default=200, help="as many that the model answers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plain", dest="chat", action="store_false", help="text that is continued, without chat marks")
    parser.add_argument("--methods", help="groups that share a record, e.g. generic_attention,grad_sam;attn_lrp")
    parser.add_argument("--maps", type=int, default=1200, help="most tokens for methods that hold attention maps")
    parser.add_argument("--report", type=Path, nargs="+", default=[], help="only print the tables of these files")
    given = parser.parse_args()
    everything = ";".join((",".join((*RECORDED, *VARIANTS, "random")), *GRADIENTS))
    given.groups = [group.split(",") for group in (given.methods or everything).split(";")]
    if given.out is not None:
        torch.set_num_threads(1)
        model, tokenizer = load(given.folder)
        with given.out.open("a", encoding="utf-8") as file:
            for row in rows_of(model.to(given.device), tokenizer, given):
                print(json.dumps(row), file=file, flush=True)
    report([row for path in given.report or [given.out] for row in noted(path)])


if __name__ == "__main__":
    main()
