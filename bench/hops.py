"""Two-step facts: do hops through a thought find both sentences that an answer came from? And their time and memory.

    python -m bench.hops [--cases 200] [--seed 0] [--detour]     # trains a tiny Llama on one core first
    python -m bench.hops --part time --device cuda --tokens 5010 10010

"anna is in hall . hall is in rome . …" in any order, with as many facts about others; then "where is anna ?". The model
writes its thought, "<think> anna is in hall , hall is in rome </think>", and then the answer, "rome". Its thought says
all that the answer needs, so an explanation of the answer stops there; and each word of the thought rests on words of
the thought before it. The two sources are the sentences about anna and about the hall. A case counts if the model
writes thought and answer itself, word for word. Printed: in how many cases the two sources have the two highest scores
among all sentences, and in how many the sentence about anna is one of them, without hops and with them, with 95 %
confidence intervals (Wilson). --detour: before it, the model is made to ask and answer the same about somebody else,
and all of this is one thought. Heads of the model begin near the solution; with seed 1 it still does not learn the
task. The rule of hops was chosen with the models of seeds 0 and 2, on cases of another stream than those here.

--part time: a model of the shape of Qwen3-8B with random weights, a thought of 1,000 tokens before an answer of 10.
Memory is what is taken above the weights. "bare" passes are the model's own, of the same number of tokens.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from torch import nn

import whyformer as wf
from bench import long
from bench.known_truth.copying import distinct
from bench.known_truth.task import SMALL, Array, whole_word_tokenizer
from bench.needle_report import written
from bench.timing import machine

SPECIAL = ("[PAD]", "[UNK]", "[BOS]")
PEOPLE = tuple("anna ben clara david emma felix greta henry ida jonas klara leo".split())
ROOMS = tuple("hall attic cellar kitchen tower barn library garden office studio porch stable".split())
CITIES = tuple("rome paris oslo cairo lima delhi quito tokyo dakar milan basel turin".split())
FRAME = ("is", "in", ".", "where", "?", "<think>", ",", "</think>")
VOCABULARY = (*SPECIAL, *PEOPLE, *ROOMS, *CITIES, *FRAME)
ID = {word: i for i, word in enumerate(VOCABULARY)}
ASKED = 4  # people in a test, each with two facts
FEWER = (2, 2, 3, 4)  # and in training: of one or two there is soon something to learn
Triple = tuple[str, str, str]  # person, room, city
Case = tuple[list[str], Triple]  # facts, and the triple that is asked for
LENGTH, REPEATED = 96, 0.7  # tokens of a text in training, and the share of facts that come again among what follows
SHARP = 6.0  # of the biases that look back
LAYERS, BATCH, RATE, LOOK, WARM_UP = 2, 32, 3e-3, 50, 50
METHODS = ("attn_lrp", "generic_attention", "input_x_gradient", "occlusion")
TIMED, WORDS, SAID = ("generic_attention", "attn_lrp"), 20_000, 10  # of --part time: tokens in use, and of the answer
FORWARD, BOTH = "bare forward", "bare forward + backward"


def stories(rng: np.random.Generator, count: int, people: int) -> tuple[list[list[str]], list[list[Triple]]]:
    """Facts in any order, and who is in which room of which city."""
    drawn = [distinct(rng, count, people, len(words)) for words in (PEOPLE, ROOMS, CITIES)]
    facts: list[list[str]] = []
    triples: list[list[Triple]] = []
    for numbers in zip(*drawn, strict=True):
        known = [(PEOPLE[a], ROOMS[b], CITIES[c]) for a, b, c in zip(*numbers, strict=True)]
        both = [f"{a} is in {b} ." for a, b, _ in known] + [f"{b} is in {c} ." for _, b, c in known]
        facts.append([both[i] for i in rng.permutation(len(both))])
        triples.append(known)
    return facts, triples


def asked_and_written(triple: Triple) -> tuple[str, str]:
    a, b, c = triple
    return f"where is {a} ?", f"<think> {a} is in {b} , {b} is in {c} </think> {c}"


def batch_of(rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Facts, then again some of them and some questions; labels are words that what came before decides."""
    facts, triples = stories(rng, BATCH, int(rng.choice(FEWER)))
    ids, labels = [], []
    for sentences, known in zip(facts, triples, strict=True):
        words = [ID["[BOS]"], *(ID[word] for sentence in sentences for word in sentence.split())]
        target = [-100] * len(words)
        while len(words) < LENGTH:
            if rng.random() < REPEATED:
                again = [ID[word] for word in sentences[rng.integers(len(sentences))].split()]
                words += again
                target += [-100, *again[1:]]
                continue
            question, answer = (
                [ID[word] for word in text.split()] for text in asked_and_written(known[rng.integers(len(known))])
            )
            words += [*question, *answer, ID["."]]
            target += [*[-100] * len(question), *answer, -100]
        ids.append(words[:LENGTH])
        labels.append(target[:LENGTH])
    return torch.tensor(ids)[:, :-1], torch.tensor(labels)[:, 1:]


def language_model(words: int = len(VOCABULARY), longest: int = 128) -> Any:
    """A small Llama over whole words, whose heads begin near the circuit that looks facts up (induction).

    Heads of the first layer look back by one, two and three words: biases of queries and keys, turned by the rotary
    embedding, make q·k = Σ_i cos((distance - back)·θ_i). Two of them pass on what they find in the same way, and the
    second layer begins with equal queries and keys, so that equal words attend to each other. Otherwise nearly all of
    the training is spent on finding these heads.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    ends = {"pad_token_id": ID["[PAD]"], "bos_token_id": ID["[BOS]"], "eos_token_id": None}
    config = LlamaConfig(
        vocab_size=words,
        num_key_value_heads=4,
        max_position_embeddings=longest,
        attention_bias=True,
        **ends,
        **SMALL | {"num_hidden_layers": LAYERS},
    )
    model = LlamaForCausalLM(config)
    nn.init.normal_(model.get_input_embeddings().weight, std=1.0)  # as in bench/known_truth/facts.py
    first: Any = model.model.layers[0].self_attn
    pairs = first.head_dim // 2
    angles = 10_000.0 ** -(torch.arange(pairs) / pairs)
    with torch.no_grad():
        for head, back in enumerate((1, 2, 3)):
            start = head * first.head_dim
            for layer in (first.q_proj, first.k_proj):
                layer.weight[start : start + 2 * pairs] = 0
            first.k_proj.bias[start : start + pairs] = SHARP
            first.q_proj.bias[start : start + pairs] = SHARP * torch.cos(back * angles)
            first.q_proj.bias[start + pairs : start + 2 * pairs] = -SHARP * torch.sin(back * angles)
        two, three = (slice(head * first.head_dim, (head + 1) * first.head_dim) for head in (1, 2))
        first.v_proj.weight[three] = first.v_proj.weight[two]
        first.o_proj.weight[:, three] = first.o_proj.weight[:, two]
        second: Any = model.model.layers[1].self_attn
        second.k_proj.weight.copy_(second.q_proj.weight)
    return model


def trained(seed: int, steps: int) -> tuple[nn.Module, int]:
    """A model, and the steps it took until it wrote all of 200 answers."""
    torch.manual_seed(seed)
    rng, looked_at = np.random.default_rng([seed, 1]), cases_of(seed, 200, 2)
    model = language_model()
    return model, fitted(model, lambda: batch_of(rng), lambda: is_written(model, looked_at), 1.0, steps, LOOK)


def fitted(
    model: nn.Module,
    drawn: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    right: Callable[[], Array],
    enough: float,
    steps: int,
    look: int,
) -> int:
    """Train until the share of right outputs is enough, looked at every so many steps; return the steps it took.

    drawn: ids and labels of a batch. right: per case, whether the model's output is right.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / WARM_UP))
    for step in range(1, steps + 1):
        ids, labels = drawn()
        logits = model.train()(input_ids=ids, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        model.eval()
        if step % look == 0:
            share = float(right().mean())
            print(f"step {step}: loss {float(loss.detach()):.3f}, {share:.1%} right", flush=True)
            if share >= enough:
                break
    return step


def cases_of(seed: int, count: int, stream: int) -> list[Case]:
    facts, triples = stories(np.random.default_rng([seed, stream]), count, ASKED)
    return [(sentences, known[0]) for sentences, known in zip(facts, triples, strict=True)]


@torch.no_grad()
def is_written(model: Any, cases: list[Case]) -> Array:
    """(I,) whether every token of thought and answer is the likeliest, after those before it."""
    texts = [(" ".join(facts), *asked_and_written(triple)) for facts, triple in cases]
    ids = torch.tensor([[ID["[BOS]"], *(ID[word] for word in " ".join(text).split())] for text in texts])
    said = len(texts[0][2].split()) - 1  # "<think>" is not a choice among others
    best = model(input_ids=ids[:, :-1], use_cache=False).logits[:, -said:].argmax(-1)
    right: Array = (best == ids[:, -said:]).all(1).numpy()
    return right


def top_two(found: Any, facts: list[str]) -> set[int]:
    """The sentences with the two highest scores."""
    starts = np.cumsum([1, *(len(fact.split()) for fact in facts)])
    sums = [float(found[start:stop].sum()) for start, stop in pairwise(starts)]
    return set(np.argsort(sums)[-2:].tolist())


def asked_of(case: Case, other: Triple | None) -> tuple[str, str, Any]:
    """Prompt, what is written, and through= what. other: who a detour is about."""
    facts, triple = case
    question, answer = asked_and_written(triple)
    if other is None:
        return " ".join([*facts, question]), " " + answer, "thoughts"
    first, detour = asked_and_written(other)
    prompt, written = " ".join([*facts, first]), f" {detour} . {question} {answer}"
    return prompt, written, [(len(prompt) + 1, len(prompt + written) - len(triple[2]) - 1)]


def sources(given: argparse.Namespace) -> None:
    """How often both sources are found."""
    torch.set_num_threads(1)
    print(machine())
    started = time.perf_counter()
    model, steps = trained(given.seed, given.steps)
    print(f"trained {steps} steps in {time.perf_counter() - started:.0f} s")
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[BOS]"}
    tokenizer = whole_word_tokenizer(VOCABULARY, "[BOS] $A", **names)
    tokenizer.model_max_length = LENGTH
    explainer = wf.Explainer(model, tokenizer)
    facts, triples = stories(np.random.default_rng([given.seed, 3]), given.cases, ASKED)
    cases = [((sentences, known[0]), known[1]) for sentences, known in zip(facts, triples, strict=True)]
    right = is_written(model, [case for case, _ in cases])
    kept = [case for case, fine in zip(cases, right, strict=True) if fine]
    print(f"{len(kept)} of {len(cases)} cases are written word for word; {2 * ASKED} sentences each")
    print(f"{'method':18s} | hops | both sources first and second | sentence about the person among them | ms")
    for method, hops in product(given.methods, given.hops):
        both = person = 0
        started = time.perf_counter()
        for case, other in kept:
            sentences, triple = case
            prompt, written_after, through = asked_of(case, other if given.detour else None)
            found = explainer.explain(
                (prompt, written_after), method=method, through=through, hops=hops, progress=False
            )
            two = [sentences.index(f"{a} is in {b} .") for a, b in (triple[:2], triple[1:])]
            best = top_two(found.scores, sentences)
            both += best == set(two)
            person += two[0] in best
        took = 1000 * (time.perf_counter() - started) / len(kept)
        rows = " | ".join(written(count, len(kept)) for count in (both, person))
        print(f"{method:18s} | {hops:4d} | {rows} | {took:.0f}", flush=True)


def qwen3(tiny: bool) -> nn.Module:
    """Qwen3-8B by its configuration, with random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape: dict[str, Any] = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "head_dim": 128}
    shape |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151_936}
    if tiny:
        shape |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16}
        shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS + 8}
    return Qwen3ForCausalLM(Qwen3Config(**shape, max_position_embeddings=40_960, attn_implementation="sdpa"))


def text_of(tokens: int, thought: int) -> tuple[str, str]:
    """Prompt and answer of as many tokens together, with a thought before the answer's last ten."""
    drawn = np.random.default_rng(0).integers(WORDS, size=tokens)
    words = [f"w{i}" for i in drawn]
    begin = tokens - SAID - thought
    words[begin], words[begin + thought - 1] = "<think>", "</think>"
    return " ".join(words[:begin]), " " + " ".join(words[begin:])


def cost(given: argparse.Namespace) -> None:
    """Seconds and memory of hops, beside the model's own passes."""
    device = torch.device(given.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    with device:
        torch.set_default_dtype(dtype)
        model = qwen3(given.tiny)
        torch.set_default_dtype(torch.float32)
    model.eval().requires_grad_(False)
    size = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**30
    print(f"{machine(given.device)}; {dtype}, weights {size:.1f} GiB, thought of {given.thought:,} tokens")
    vocabulary = ("[UNK]", "<think>", "</think>", *(f"w{i}" for i in range(WORDS)))
    tokenizer = whole_word_tokenizer(vocabulary, None, unk_token="[UNK]")
    tokenizer.model_max_length = 40_960
    explainer = wf.Explainer(model, tokenizer)
    for tokens in given.tokens:
        text = text_of(tokens, given.thought)
        ids = tokenizer("".join(text), return_tensors="pt")["input_ids"].to(device)
        assert ids.shape[1] == tokens
        heading = f"{tokens:,} tokens"
        print(f"\n{heading:30s} seconds | ÷ forward | ÷ both | ÷ hops=0 |    GiB | ÷ both | ÷ hops=0")
        found: dict[str, tuple[float, float]] = {}

        def row(name: str, run: Any, without: str = "", found: Any = found) -> None:
            """Measure one, and print its ratios to those before."""
            result = long.measured(run, device, given.repeats)
            if isinstance(result, str):
                print(f"{name:30s} {result}", flush=True)
                return
            found[name] = seconds, taken = result
            forward, both, plain = (found.get(other, (np.nan, np.nan)) for other in (FORWARD, BOTH, without))
            ratios = f"{seconds / forward[0]:9.2f} | {seconds / both[0]:6.2f} | {seconds / plain[0]:8.2f}"
            space = f"{taken:6.2f} | {taken / both[1]:6.2f} | {taken / plain[1]:8.2f}"
            print(f"{name:30s} {seconds:7.2f} | {ratios} | {space}".replace("nan", "  –"), flush=True)

        def explained(method: str, hops: int, text: tuple[str, str] = text) -> Any:
            return lambda: explainer.explain(text, method=method, through="thoughts", hops=hops, progress=False)

        row(FORWARD, long.bare(model, ids, backward=False))
        row(BOTH, long.bare(model, ids))
        for method, hops in product(given.methods, (0, 1)):
            row(f"{method}, hops={hops}", explained(method, hops), f"{method}, hops=0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("sources", "time"), default="sources")
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--hops", nargs="+", type=int, default=[0, 1, 2, 4])
    parser.add_argument("--detour", action="store_true", help="with a detour in the thought")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", nargs="+", type=int, default=[5010, 10010])
    parser.add_argument("--thought", type=int, default=1000, help="tokens of the thought")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try --part time on a CPU")
    given = parser.parse_args()
    given.methods = given.methods or list(METHODS if given.part == "sources" else TIMED)
    (sources if given.part == "sources" else cost)(given)


if __name__ == "__main__":
    main()
