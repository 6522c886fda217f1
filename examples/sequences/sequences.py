"""From which package of the standard library is a function? Functions have many lengths, so shards are padded."""

import ast
import re
import sysconfig
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from batchgrowth_trainer.workload import Workload, correct
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
VOCABULARY, LONGEST = 4096, 100
PADDING = 0


def functions(package: str) -> Iterator[str]:
    """Return the source of each function of a package, in the order of its files."""
    for path in sorted((Path(sysconfig.get_path("stdlib")) / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield "\n".join(lines[node.lineno - 1 : node.end_lineno])


def tokens(source: str) -> Tensor:
    """Return a number from 1 for each word of the source, the same in every process, as `hash` is not."""
    words = re.findall(r"[A-Za-z]+", source)[:LONGEST]
    return torch.tensor([1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words])


class Functions(Dataset[tuple[Tensor, int]]):
    """The first `each` functions of every package, with its number; every fifth one is for the test."""

    def __init__(self, each: int, *, test: bool) -> None:
        self.examples = [
            (tokens(source), label)
            for label, package in enumerate(PACKAGES)
            for number, source in enumerate(islice(functions(package), each))
            if (number % 5 == 0) == test
        ]

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.examples[index]


def padded(examples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """One batch of a shard's examples, as long as the longest of them: (N, T) and (N,)."""
    sequences, labels = zip(*examples, strict=True)
    return pad_sequence(sequences, batch_first=True, padding_value=PADDING), torch.tensor(labels)


class Reader(nn.Module):
    """Words (N, T) -> scores of the packages (N, 8): a mean over the words, weighted by how much each one tells."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, width, padding_idx=PADDING)
        self.weight = nn.Linear(width, 1)
        self.score = nn.Sequential(nn.Dropout(0.5), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, len(PACKAGES)))

    def forward(self, words: Tensor) -> Tensor:
        padding = (words == PADDING).unsqueeze(2)
        embedded = self.word(words)  # (N, T, width)
        weights = self.weight(embedded).masked_fill(padding, -torch.inf).softmax(dim=1)
        return self.score((weights * embedded).sum(dim=1))


def workload(each: str = "200", width: str = "64") -> Workload:
    return Workload(
        model=Reader(int(width)),
        loss=nn.CrossEntropyLoss(reduction="none"),
        train=Functions(int(each), test=False),
        test=Functions(int(each), test=True),
        metrics={"accuracy": correct},
        collate=padded,
    )
