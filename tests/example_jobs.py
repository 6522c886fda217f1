"""The examples that bring their own code and data, at sizes that train in seconds."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from batchgrowth.manifest.reading import load_manifest
from batchgrowth.spec import BatchGrowthJob

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.extend(str(EXAMPLES / folder) for folder in ("characters", "images", "memmap", "sequences"))


@dataclass(frozen=True)
class Example:
    """A manifest of examples/, with overrides for two sizes.

    `few` updates of a tiny net, five epochs with a batch that grows, are enough to compare weights. `small` learns
    visibly: the best constant answer has the accuracy `chance`, and training reaches at least `reached`.
    In overrides, DATA stands for the folder of `make_example_data`.
    """

    manifest: str
    few: tuple[str, ...]
    small: tuple[str, ...]
    chance: float
    reached: float

    @property
    def folder(self) -> Path:
        """Where its code is."""
        return (EXAMPLES / self.manifest).parent

    def job(self, data: Path, *overrides: str) -> BatchGrowthJob:
        """The job with `path=value` overrides, and with this folder in the place of DATA."""
        return load_manifest(EXAMPLES / self.manifest, [text.replace("DATA", str(data)) for text in overrides])


EACH_EPOCH = ("batch.growth.geometric={factor: '1.5', everyEpochs: 1}",)
CHARACTERS = Example(
    "characters/growth.yaml",
    few=(
        "workload.arguments={windows: '96', test: '20', length: '16', width: '16', depth: '1', heads: '2'}",
        "workload.examples=96",
        "batch={initial: 12, maximum: 48, shard: 4, growth: {type: InsteadOfDecay}}",
        "epochs=5",
        "learningRate.warmup.updates=3",
    ),
    small=(
        "workload.arguments={windows: '1000', test: '100', length: '32', width: '32', depth: '1', heads: '2'}",
        "workload.examples=1000",
        "batch={initial: 10, maximum: 20, growth: {type: InsteadOfDecay}}",
        "epochs=4",
        "learningRate.initial=0.01",
        "learningRate.warmup.updates=20",
    ),
    chance=0.31,  # the share of spaces
    reached=0.36,
)
COSINE = replace(
    CHARACTERS,
    manifest="characters/job.yaml",
    few=(),
    small=(*CHARACTERS.small, "batch={initial: 10, maximum: 10, growth: {type: Constant}}"),
)
IMAGES = Example(
    "images/job.yaml",
    few=(
        "workload.arguments={data: DATA/few/images, channels: '4'}",
        "workload.examples=48",
        "batch.initial=6",
        "batch.maximum=24",
        "batch.shard=3",
        *EACH_EPOCH,
        "epochs=5",
    ),
    small=(
        "workload.arguments={data: DATA/small/images, channels: '8'}",
        "workload.examples=320",
        "batch.initial=8",
        "batch.maximum=32",
        "batch.shard=8",
        "epochs=5",
    ),
    chance=1 / 10,
    reached=0.5,
)
MEMMAP = Example(
    "memmap/job.yaml",
    few=(
        "workload.arguments={table: DATA/few/table.f32, test: '64', hidden: '8'}",
        "workload.examples=192",
        "batch.initial=24",
        "batch.maximum=96",
        "batch.shard=8",
        *EACH_EPOCH,
        "epochs=5",
    ),
    small=(
        "workload.arguments={table: DATA/small/table.f32, test: '512', hidden: '16'}",
        "workload.examples=7680",
        "batch.initial=64",
        "batch.maximum=256",
        "batch.shard=64",
        *EACH_EPOCH,
        "epochs=2",
    ),
    chance=1 / 8,
    reached=0.7,
)
SEQUENCES = Example(
    "sequences/job.yaml",
    few=(
        "workload.arguments={each: '20', width: '8'}",
        "workload.examples=128",
        "batch.initial=16",
        "batch.maximum=64",
        "batch.shard=4",
        *EACH_EPOCH,
        "epochs=5",
    ),
    small=(
        "workload.arguments={each: '100', width: '32'}",
        "workload.examples=640",
        "batch.initial=8",
        "batch.maximum=32",
        "batch.shard=8",
        "epochs=6",
        "learningRate.initial=0.005",
    ),
    chance=1 / 8,
    reached=0.5,
)
BFLOAT16 = ("precision=BFloat16",)
EXAMPLE_JOBS = {
    "characters": CHARACTERS,
    "characters in bfloat16": replace(
        CHARACTERS, few=(*CHARACTERS.few, *BFLOAT16), small=(*CHARACTERS.small, *BFLOAT16)
    ),
    "images": IMAGES,
    "memmap": MEMMAP,
    "sequences": SEQUENCES,
}


LEARNED_JOBS = {**EXAMPLE_JOBS, "characters by a cosine": COSINE}
"""Those and the one whose batch does not grow, which has no stages between which its workers could change."""


def make_example_data(folder: Path) -> None:
    """The data of images and memmap for both sizes, some 40 MB."""
    from make_images import make as make_images
    from make_table import make as make_table

    make_images(folder / "few" / "images", images=60, side=64)
    make_images(folder / "small" / "images", images=400, side=64)
    make_table(folder / "few" / "table.f32", rows=256)
    make_table(folder / "small" / "table.f32", rows=8192)
