"""What loaders gain: `python -m bench.loading`.

One worker trains a small net on images that take some milliseconds of a processor to read, with `workers.loaders` of 0
and 2; beside it, in turns, a plain PyTorch loop of the same net with a DataLoader of as many processes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from batchgrowth.manifest import read_manifest
from batchgrowth_trainer.training import Options, train
from batchgrowth_trainer.workload import Workload
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SIDE, CLASSES = 32, 10
JOB = """
apiVersion: batchgrowth.dev/v1alpha1
kind: BatchGrowthJob
metadata: {{name: loading}}
spec:
  workload: {{entrypoint: "bench.loading:workload", arguments: {{examples: "{examples}", repeats: "{repeats}"}},
              examples: {examples}}}
  epochs: 2
  batch: {{initial: {batch}, maximum: {batch}, shard: {batch}}}
  learningRate: {{initial: "0.05", rule: Constant}}
  exchange: {{type: SingleProcess}}
  evaluation: {{everyEpochs: 100}}
  workers: {{loaders: {loaders}}}
"""


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Compressed images, each decompressed `repeats` times."""

    def __init__(self, examples: int, repeats: int) -> None:
        self.examples, self.repeats = examples, repeats
        image = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
        self.packed = zlib.compress(image.numpy().tobytes())

    def __len__(self) -> int:
        return self.examples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        for _ in range(self.repeats):
            raw = zlib.decompress(self.packed)
        image = torch.frombuffer(bytearray(raw), dtype=torch.float32).view(3, SIDE, SIDE)
        return image + index % 7, torch.tensor(index % CLASSES)


def net() -> nn.Module:
    """A small convolutional net."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def workload(examples: str, repeats: str) -> Workload:
    """The net on slow images."""
    return Workload(model=net(), loss=nn.CrossEntropyLoss(reduction="none"), train=Slow(int(examples), int(repeats)))


def ours(examples: int, repeats: int, batch: int, loaders: int) -> float:
    """Images per second of the second epoch."""
    job = read_manifest(JOB.format(examples=examples, repeats=repeats, batch=batch, loaders=loaders))
    with tempfile.TemporaryDirectory() as folder:
        train(job, Options(output_dir=Path(folder)))
        rows = (Path(folder) / "history.csv").read_text().splitlines()
    header = rows[0].split(",")
    seconds = [float(row.split(",")[header.index("seconds")]) for row in rows[1:]]
    half = len(seconds) // 2
    return examples / (seconds[-1] - seconds[half - 1])


def plain(examples: int, repeats: int, batch: int, loaders: int) -> float:
    """Images per second of the second epoch of a PyTorch loop."""
    torch.set_num_threads(1)
    model, loss = net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data: Any = DataLoader(
        Slow(examples, repeats), batch, shuffle=True, num_workers=loaders, persistent_workers=loaders > 0
    )
    for _ in range(2):
        began = time.perf_counter()
        for inputs, target in data:
            optimizer.zero_grad()
            loss(model(inputs), target).backward()
            optimizer.step()
    return examples / (time.perf_counter() - began)


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    examples: Annotated[int, typer.Option(min=64)] = 640,
    repeats: Annotated[int, typer.Option(min=1, help="Each is a tenth of a millisecond or so.")] = 40,
    batch: Annotated[int, typer.Option(min=1)] = 32,
) -> None:
    """Compare loaders with torch's DataLoader, side by side."""
    figures: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for loaders in (0, 2):
            for name, measured in (("batchgrowth", ours), ("DataLoader", plain)):
                figures.setdefault((name, loaders), []).append(measured(examples, repeats, batch, loaders))
    table = Table("loaders", "batchgrowth (images/s)", "DataLoader (images/s)", "ratio of medians")
    for loaders in (0, 2):
        mine, theirs = (figures[name, loaders] for name in ("batchgrowth", "DataLoader"))
        ratio = statistics.median(mine) / statistics.median(theirs)
        table.add_row(str(loaders), _spread(mine), _spread(theirs), f"{ratio:.2f}")
    Console(file=sys.stdout).print(table)


def _spread(figures: list[float]) -> str:
    return f"{min(figures):.0f} / {statistics.median(figures):.0f} / {max(figures):.0f}"


if __name__ == "__main__":
    typer.run(main)
