"""Make an image folder: scikit-learn's handwritten digits, written large over parts of its two photographs.

python examples/images/make_images.py data/images        # 1,797 images of 512×512 pixels
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images


def make(folder: Path, images: int, side: int) -> None:
    """Write `images` JPEGs of side×side pixels as folder/{train,test}/DIGIT/NUMBER.jpg; every fifth is for the test."""
    digits, photographs = load_digits(), load_sample_images().images
    draw = np.random.default_rng(0)
    for number in range(images):
        picture = background(photographs[number % len(photographs)], side, draw)
        stroke = Image.fromarray((digits.images[number] * 255 / 16).astype(np.uint8))
        size = int(side * draw.uniform(0.7, 0.9))
        place = tuple(draw.integers(0, side - size, 2).tolist())
        picture.paste("white", place, stroke.resize((size, size), Image.Resampling.BICUBIC))
        path = folder / ("test" if number % 5 == 0 else "train") / str(digits.target[number]) / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, quality=90)


def background(photograph: np.ndarray, side: int, draw: np.random.Generator) -> Image.Image:
    """Return a random part of the photograph, at half its brightness."""
    height, width, _ = photograph.shape
    top, left = draw.integers(0, height - 256), draw.integers(0, width - 256)
    part = Image.fromarray(photograph[top : top + 256, left : left + 256] // 2)
    return part.resize((side, side), Image.Resampling.BICUBIC)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=1797, help="at most 1797, the default")
    parser.add_argument("--side", type=int, default=512, help="of an image, in pixels; 512 by default")
    given = parser.parse_args()
    make(given.folder, given.images, given.side)
