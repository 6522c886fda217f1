"""A small transformer that continues Python code, byte by byte; its text is the standard library of this Python."""

import math
import sys
import sysconfig
from pathlib import Path

import torch
from batchgrowth_trainer.workload import Workload
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

BYTES = 256


def modules(held_out: bool) -> bytes:
    """Return the source of the library's single-file modules, by name: every tenth one is held out for the test."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = [path for name in sorted(sys.stdlib_module_names) if (path := library / f"{name}.py").exists()]
    return b"".join(path.read_bytes() for number, path in enumerate(paths) if (number % 10 == 0) == held_out)


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """`number` windows spread over a text, each with the same window a byte later as its target.

    If they are shifted, each begins at a random byte before the next, so that epochs differ.
    """

    def __init__(self, text: bytes, number: int, length: int, *, shifted: bool) -> None:
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.number, self.length, self.shifted = number, length, shifted
        self.stride = (len(text) - length - 1) / number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        shift = torch.rand(()).item() if self.shifted else 0
        start = int((index + shift) * self.stride)
        window = self.text[start : start + self.length + 1].long()
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.attend(self.norm1(x)).unflatten(2, (3, self.heads, -1))  # (N, T, 3, heads, width of a head)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Bytes (N, T) -> scores of the byte that follows each, (N, T, 256)."""

    def __init__(self, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(BYTES, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.score = nn.LayerNorm(width), nn.Linear(width, BYTES, bias=False)
        for embedding in (self.byte, self.place):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        return self.score(self.norm(self.blocks(self.byte(text) + self.place(places))))


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean over the bytes of each window: one number per window, as the trainer wants it."""
    return F.cross_entropy(output.transpose(1, 2), target, reduction="none").mean(dim=1)


def workload(
    windows: str = "8000", test: str = "500", length: str = "64", width: str = "64", depth: str = "2",
    heads: str = "4",
) -> Workload:  # fmt: skip
    return Workload(
        model=Transformer(int(width), int(depth), int(heads), int(length)),
        loss=loss,
        train=Windows(modules(held_out=False), int(windows), int(length), shifted=True),
        test=Windows(modules(held_out=True), int(test), int(length), shifted=False),
        metrics={
            "accuracy": lambda output, target: (output.argmax(2) == target).float().mean(1),
            "bits": lambda output, target: loss(output, target) / math.log(2),  # per byte
        },
    )
