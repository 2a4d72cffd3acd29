"""Stories that end in a question, told to a Llama of six layers that the command trains: tokens, and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

import whyformer as wf
from bench.frontier.contenders import Contenders, of_many_passes, of_one_pass
from bench.frontier.planted import PlantedSubject, Trained
from bench.frontier.subject import Array
from bench.known_truth.facts import ID, SENTENCES, VOCABULARY, WORDS
from bench.known_truth.task import Inputs

QUESTION = -1  # the last unit of a story, which the judge never takes away


class Stories(PlantedSubject):
    """The log-probability of the right answer; [BOS] and the question always stay."""

    def __init__(self, trained: Trained) -> None:
        super().__init__(trained)
        self.made_of = f"{self.count} stories of {SENTENCES} sentences; {trained.gate}"

    def _cause_SW(self, number: int) -> Array:
        cause: Array = self.trained.planted.cause_IU[self.trained.rows[number], : SENTENCES * WORDS]
        return cause.reshape(SENTENCES, WORDS)


class Tokens(Stories):
    """[UNK] for absent tokens, which the model met in training."""

    name = "language model, tokens"
    masking: ClassVar[dict[str, Any]] = {"replace": "unk", "hold": QUESTION}

    def scores_P(self, number: int, explanation: wf.Explanation) -> Array:
        scores: Array = explanation.scores[1 : 1 + SENTENCES * WORDS]
        return scores

    def cause_P(self, number: int) -> Array:
        return self._cause_SW(number).reshape(-1)

    def values(self, number: int, present_VP: Array) -> Array:
        ids = self.tensors([number])["input_ids"].repeat(len(present_VP), 1)
        story = ids[:, 1 : 1 + SENTENCES * WORDS]
        story[~torch.from_numpy(present_VP)] = ID["[UNK]"]
        return self.log_probability(number, {"input_ids": ids})


class WholeSentences(Stories):
    """Absent sentences are left out."""

    name = "language model, sentences"
    options: ClassVar[dict[str, Any]] = {"units": "sentence"}
    masking: ClassVar[dict[str, Any]] = {"replace": "delete", "hold": QUESTION}

    def inputs(self, rows: Sequence[int]) -> list[str]:
        return _told(self.tensors(rows))

    def further(self, count: int) -> list[str]:
        return _told(super().further(count))

    def scores_P(self, number: int, explanation: wf.Explanation) -> Array:
        scores: Array = explanation.scores[~np.array(explanation.units.special)]
        assert len(scores) == SENTENCES + 1, explanation.units.labels  # the question is the last
        return scores[:-1]

    def cause_P(self, number: int) -> Array:
        cause: Array = self._cause_SW(number).any(1)
        return cause

    def __init__(self, trained: Trained) -> None:
        super().__init__(trained)
        self._known: dict[tuple[int, bytes], float] = {}  # methods ask for the same few sets of sentences

    def values(self, number: int, present_VP: Array) -> Array:
        keys = [(number, present.tobytes()) for present in present_VP]
        new = {key: present for key, present in zip(keys, present_VP, strict=True) if key not in self._known}
        ids = self.tensors([number])["input_ids"][0].numpy()
        ends = np.ones(1, bool)  # [BOS], and the question
        for length in {int(present.sum()) for present in new.values()}:
            some = {key: present for key, present in new.items() if present.sum() == length}
            told = [ids[np.concatenate([ends, present.repeat(WORDS), ends])] for present in some.values()]
            said = self.log_probability(number, {"input_ids": torch.from_numpy(np.stack(told))})
            self._known |= dict(zip(some, said.tolist(), strict=True))
        return np.array([self._known[key] for key in keys])


def _told(inputs: Inputs) -> list[str]:
    return [" ".join(VOCABULARY[i] for i in one[1:]) for one in inputs["input_ids"].tolist()]


def contenders_of_tokens() -> Contenders:
    return of_one_pass() | of_many_passes("unk", hold=QUESTION)


def contenders_of_sentences() -> Contenders:
    return of_one_pass() | of_many_passes("delete", hold=QUESTION)


def subjects(count: int, seed: int, cache: Path | None, device: str = "cpu") -> tuple[Tokens, WholeSentences]:
    trained = Trained("facts", count, seed, cache, device=device)
    return Tokens(trained), WholeSentences(trained)
