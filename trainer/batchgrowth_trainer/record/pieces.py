"""The row files of a run, such as history.csv, as pieces that an object store can keep, which cannot append.

A piece is a range of a file's bytes and never changes. Small neighbours are merged as the file grows, like the digits
of a binary number, so that a file of n bytes is in O(log n) pieces, and a byte is uploaded O(log n) times.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from batchgrowth_trainer.record import sealed
from batchgrowth_trainer.record.history import EVALUATIONS_FILE, GROWTH_FILE, HISTORY_FILE
from batchgrowth_trainer.record.rows import RowFile

LARGEST_BYTES = 1 << 25
"""The most bytes of a piece."""
FILES = (HISTORY_FILE, EVALUATIONS_FILE, GROWTH_FILE)


class Piece(NamedTuple):
    """A range of a file's bytes; the name has its SHA-256."""

    begin: int
    end: int
    name: str


class Pieces:
    """The pieces of the row files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of: dict[str, list[Piece]] = {name: [] for name in FILES}

    def current(self) -> dict[str, list[Piece]]:
        """The pieces of each file as it is now. Raises OSError."""
        for name, old in self._of.items():
            path = self._folder / name
            size, known = path.stat().st_size if path.exists() else 0, {(p.begin, p.end): p for p in old}
            ends = grown([piece.end for piece in old], size)
            ranges = zip([0, *ends], ends, strict=False)
            self._of[name] = [known.get(between) or self._made(name, *between) for between in ranges]
        return self._of

    def read(self, file: str, piece: Piece) -> bytes:
        """The bytes of a piece. Raises OSError."""
        with (self._folder / file).open("rb") as opened:
            opened.seek(piece.begin)
            return opened.read(piece.end - piece.begin)

    def restore(
        self, pieces: Mapping[str, Sequence[Sequence[int | str]]], update: int, fetch: Callable[[str], bytes]
    ) -> None:
        """Write the files as these pieces have them, up to the row of that update.

        Raises OSError, and Damaged if a piece is not what was written.
        """
        for file in FILES:
            path, self._of[file] = self._folder / file, [Piece(*piece) for piece in pieces[file]]  # type: ignore[arg-type]
            path.unlink(missing_ok=True)
            for piece in self._of[file]:
                data = fetch(piece.name)
                if piece.name != _name(file, piece.begin, piece.end, data):
                    text = f"{piece.name} is not what was written ({len(data)} bytes, other digest)"
                    raise sealed.Damaged(text, piece.name)
                with path.open("ab") as opened:
                    opened.write(data)
            RowFile(path).truncate(update)
            size = path.stat().st_size if path.exists() else 0
            self._of[file] = [piece for piece in self._of[file] if piece.end <= size]

    def _made(self, file: str, begin: int, end: int) -> Piece:
        data = self.read(file, Piece(begin, end, ""))
        return Piece(begin, end, _name(file, begin, end, data))


def _name(file: str, begin: int, end: int, data: bytes) -> str:
    return f"rows/{file}/{begin:015d}-{end:015d}-{sealed.sha256(data)[:16]}"


def grown(ends: Sequence[int], size: int) -> list[int]:
    """Where the pieces of a file end that has grown to `size` bytes, from where they ended before."""
    kept = list(ends)
    begin = kept[-1] if kept else 0
    if size <= begin:
        return kept
    while kept:
        before = kept[-2] if len(kept) > 1 else 0
        if begin - before > size - begin or size - before > LARGEST_BYTES:
            break
        begin = before
        kept.pop()
    return [*kept, *range(begin + LARGEST_BYTES, size, LARGEST_BYTES), size]
