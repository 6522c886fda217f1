"""What people bring: a small head on a frozen bfloat16 net, and sequences of many lengths, padded by their own code."""

import random
from typing import Any

import numpy as np
import torch
from batchgrowth_trainer.workload import Workload, correct
from torch import Tensor, nn

TOKENS, CLASSES, EXAMPLES, LONGEST = 50, 5, 240, 12


class Sentences:
    """Examples as dictionaries; each read draws a part of the sentence from numpy, and drops tokens by `random`."""

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        label = index % CLASSES
        sentence = [(label * 10 + index * step) % TOKENS for step in range(1, LONGEST + 1)]
        part = sentence[: np.random.randint(3, LONGEST)]
        return {"tokens": [token for token in part if random.random() < 0.9] or part[:1], "label": label}


def padded(examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    rows = [torch.tensor(example["tokens"]) for example in examples]
    return {
        "tokens": nn.utils.rnn.pad_sequence(rows, batch_first=True),
        "lengths": torch.tensor([len(row) for row in rows]),
        "label": torch.tensor([example["label"] for example in examples]),
    }


class Adapter(nn.Module):
    """The mean of a sentence's frozen embeddings, less a running mean, and a head on it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 16).to(torch.bfloat16).requires_grad_(requires_grad=False)
        self.register_buffer("mean", torch.zeros(16, dtype=torch.bfloat16))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, *, tokens: Tensor, lengths: Tensor) -> Tensor:
        held = torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(1)
        sums = (self.embedding(tokens).float() * held.unsqueeze(2)).sum(1) / lengths.unsqueeze(1)
        if self.training:
            self.mean.lerp_(sums.mean(0).to(torch.bfloat16), 0.1)
        return self.head(sums - self.mean.float())


def twice(model: nn.Module, inputs: dict[str, Tensor], target: Tensor) -> Tensor:
    """The loss, and how far the outputs for the sentence and for its first half are from each other."""
    whole, half = model(**inputs), model(**inputs | {"lengths": (inputs["lengths"] + 1) // 2})
    return nn.functional.cross_entropy(whole, target, reduction="none") + 0.1 * (whole - half).square().mean(1)


def f1(output: Tensor, target: Tensor) -> float:
    """The mean over the classes."""
    guessed, scores = output.argmax(1), []
    for each in range(CLASSES):
        right = int(((guessed == each) & (target == each)).sum())
        scores.append(2 * right / max(int((guessed == each).sum() + (target == each).sum()), 1))
    return sum(scores) / CLASSES


def workload() -> Workload:
    return Workload(
        model=Adapter(),
        loss=nn.CrossEntropyLoss(reduction="none"),
        train=Sentences(),
        test={"all": Sentences(), "again": Sentences()},
        metrics={"accuracy": correct},
        whole_set_metrics={"f1": f1},
        collate=padded,
        step=twice,
    )
