"""Positions in a training, and the closed-form walk over epochs and updates."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Updates done, epochs done, and examples used of the current epoch."""

    update: int = 0
    epoch: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Epochs:
    """`epochs` passes over `examples` examples.

    The batches of an epoch are consecutive parts of that epoch's permutation. The last batch may be short, so each
    epoch uses every example exactly once.
    """

    examples: int
    epochs: int

    def to_epoch(self, start: Position, batch: int, epoch: int) -> Position:
        """Return the position at which updates of `batch` examples from `start` reach `epoch`, at most the end."""
        epoch = min(epoch, self.epochs)
        # The updates that finish the present epoch, and those of the whole epochs after it. -(-a // b) is a / b rounded
        # up, exact for numbers of any size.
        first = -(-(self.examples - start.offset) // batch)
        rest = (epoch - start.epoch - 1) * -(-self.examples // batch)
        return Position(start.update + first + rest, epoch, 0)

    def after_updates(self, start: Position, batch: int, updates: int) -> Position:
        """Return the position after `updates` updates of `batch` examples from `start`, at most the end."""
        first = -(-(self.examples - start.offset) // batch)  # updates that finish the present epoch
        if updates < first:
            return Position(start.update + updates, start.epoch, start.offset + updates * batch)
        whole, part = divmod(updates - first, -(-self.examples // batch))
        epoch = start.epoch + 1 + whole
        if epoch >= self.epochs:
            return self.to_epoch(start, batch, self.epochs)
        return Position(start.update + updates, epoch, part * batch)
