"""A folder of images, a subfolder for each class: every image is decoded when it is read, and cropped at random."""

import random
from pathlib import Path

import numpy as np
import torch
from batchgrowth_trainer.workload import Workload, correct
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

CLASSES = 10
SIDE, MARGIN = 32, 4


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Images float32 (3, 32, 32) about 0, with the number of their folder."""

    def __init__(self, folder: Path, *, augmented: bool) -> None:
        self.paths = sorted(folder.glob("*/*.jpg"))
        if not self.paths:
            raise FileNotFoundError(f"{folder} has no images; make them with examples/images/make_images.py")
        self.augmented = augmented

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path = self.paths[index]
        with Image.open(path) as file:
            image = file.convert("RGB").resize((SIDE + MARGIN, SIDE + MARGIN), Image.Resampling.BOX)
        left = top = MARGIN // 2
        brightness = 1.0
        if self.augmented:  # three sources of random numbers; the trainer seeds them all
            left, top = torch.randint(MARGIN + 1, (2,)).tolist()
            brightness = random.uniform(0.7, 1.0)  # noqa: S311
            if np.random.random() < 0.1:
                image = image.convert("L").convert("RGB")
        image = image.crop((left, top, left + SIDE, top + SIDE))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return brightness * pixels / 127.5 - 1, int(path.parent.name)


def convolution(inputs: int, outputs: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


def workload(data: str, channels: str = "32") -> Workload:
    """Return what the trainer trains; `data` is the folder that make_images.py has made."""
    folder, width = Path(data), int(channels)
    return Workload(
        model=nn.Sequential(
            convolution(3, width), convolution(width, 2 * width), convolution(2 * width, 4 * width),
            nn.Flatten(), nn.Linear(4 * width * 16, CLASSES),
        ),
        loss=nn.CrossEntropyLoss(reduction="none"),
        train=ImageFolder(folder / "train", augmented=True),
        test=ImageFolder(folder / "test", augmented=False),
        metrics={"accuracy": correct},
    )  # fmt: skip
