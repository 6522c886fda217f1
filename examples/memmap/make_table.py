"""Make a table of float32 in a file, 4 KiB a row, piece by piece, so that it may be larger than memory.

python examples/memmap/make_table.py data/table.f32        # 1,048,576 rows: 4 GiB
"""

import argparse
from pathlib import Path

import numpy as np
from memmap import COLUMNS, SOURCES

PIECE = 8192  # rows


def make(path: Path, rows: int) -> None:
    """Each row mixes eight sources, with noise; its last column says which of them is the loudest."""
    draw = np.random.default_rng(0)
    mixing = draw.standard_normal((SOURCES, COLUMNS), dtype=np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for first in range(0, rows, PIECE):
            sources = draw.standard_normal((min(PIECE, rows - first), SOURCES), dtype=np.float32)
            table = sources @ mixing + draw.standard_normal((len(sources), COLUMNS), dtype=np.float32)
            table[:, -1] = sources.argmax(axis=1)
            table.tofile(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=1 << 20, help="1,048,576 by default")
    given = parser.parse_args()
    make(given.path, given.rows)
