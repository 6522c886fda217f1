"""A growth of one's own."""

from batchgrowth.looks import Look


def by_least_loss(look: Look) -> float:
    """Grows as the loss falls below the least that it has seen, and by one for each time it was asked."""
    look.memory[0] = min(look.memory[0] or look.start.loss, look.now.loss)
    look.memory[1] += 1
    return look.initial * look.start.loss / look.memory[0] + look.memory[1]
