"""CIFAR-10 in its binary version: 60,000 colour images of 32×32 pixels in ten classes, read from its original files.

A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009; https://www.cs.toronto.edu/~kriz/cifar.html.
A file is a sequence of records of 3,073 bytes: the label (0 to 9), then 1,024 bytes each of red, green and blue.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from batchgrowth.errors import DataError
from torch import Tensor, nn
from torch.nn import functional as F

from batchgrowth_trainer.workload import Workload, correct

SIDE = 32
RECORD_BYTES = 1 + 3 * SIDE * SIDE
CLASSES = 10
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
PADDING = 4
# Mean and standard deviation of the training images' channels, in units of the full byte range.
CHANNEL_MEAN = (0.4914, 0.4822, 0.4465)
CHANNEL_STD = (0.2470, 0.2435, 0.2616)
WHERE = "get the CIFAR-10 binary version from https://www.cs.toronto.edu/~kriz/cifar.html and unpack it"


def cifar10_workload(model: nn.Module, data: str) -> Workload:
    """Train `model` on the images in folder `data`, randomly cropped and flipped. Raises DataError."""
    folder = Path(data)
    return Workload(
        model=model,
        loss=nn.CrossEntropyLoss(reduction="none"),
        train=read_images(folder, TRAIN_FILES),
        test=read_images(folder, TEST_FILES),
        metrics={"accuracy": correct},
        augment=crop_and_flip,
    )


@dataclass(frozen=True, slots=True)
class Images:
    """Images as bytes, uint8 (N, 3, 32, 32), a quarter of the size of floats, with labels int64 (N,)."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return normalised(self.pixels[index]), self.labels[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        chosen = torch.tensor(indices)
        return list(zip(normalised(self.pixels[chosen]), self.labels[chosen], strict=True))


def normalised(pixels: Tensor) -> Tensor:
    """Return `pixels` as float32 (…, 3, H, W), with mean 0 and deviation 1 per channel over the training set."""
    mean = torch.tensor(CHANNEL_MEAN).view(3, 1, 1)
    std = torch.tensor(CHANNEL_STD).view(3, 1, 1)
    return (pixels.to(torch.float32) / 255 - mean) / std


def read_images(folder: Path, names: tuple[str, ...]) -> Images:
    """Read the examples of the named files, in order. Raises DataError, which names a missing or damaged file."""
    records = np.concatenate([_read_records(folder / name) for name in names])
    # Copied, since the pixels of a record lie between two labels.
    pixels = torch.from_numpy(records[:, 1:].copy()).view(-1, 3, SIDE, SIDE)
    return Images(pixels, torch.from_numpy(records[:, 0].astype(np.int64)))


def _read_records(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}; {WHERE}, or set workload.arguments.data") from error
    if len(content) == 0 or len(content) % RECORD_BYTES:
        raise DataError(
            f"{path}: {len(content)} bytes is not a multiple of the record size, {RECORD_BYTES}, so the file is "
            f"truncated or has another format; {WHERE} again"
        )
    records = content.reshape(-1, RECORD_BYTES)
    worst = int(records[:, 0].argmax())
    if records[worst, 0] >= CLASSES:
        raise DataError(
            f"{path}: record {worst} has label {records[worst, 0]}, not 0 to {CLASSES - 1}, so this is another "
            f"format (CIFAR-100 perhaps); {WHERE}"
        )
    return records


def crop_and_flip(images: Tensor) -> Tensor:
    """Pad and shift each image of (N, C, H, W) by up to 4 pixels, and mirror it with probability 1/2.

    Draws 3·N numbers from torch's global CPU generator, on every device.
    """
    number, channels, height, width = images.shape
    top, left = torch.randint(0, 2 * PADDING + 1, (2, number, 1))
    columns = torch.arange(width).expand(number, -1)
    columns = torch.where(torch.rand(number, 1) < 0.5, columns.flip(1), columns) + left
    rows = torch.arange(height) + top
    places = (rows.unsqueeze(2) * (width + 2 * PADDING) + columns.unsqueeze(1)).view(number, 1, -1).to(images.device)
    padded = F.pad(images, (PADDING,) * 4).flatten(2)
    return padded.gather(2, places.expand(-1, channels, -1)).view_as(images)
