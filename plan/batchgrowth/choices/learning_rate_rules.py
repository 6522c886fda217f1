"""Rules by which the learning rate follows the batch, one entry each.

batchgrowth/learning_rate.py has everything else on which the learning rate of an update depends.
"""

from fractions import Fraction

from batchgrowth.extend import RateEntry, always_acts, square_root
from batchgrowth.looks import Signals, Windows
from batchgrowth.registry import gain_idle
from batchgrowth.schema import Rule

# --- Constant: lr = lr0 ---

CONSTANT = RateEntry(
    name="Constant",
    summary="does not depend on the batch",
    implementation=lambda rate, _initial, _wanted, _used: rate,
    idle=always_acts,  # users choose it to keep the learning rate as it is
)


# --- DecayPastMaximum: lr = lr0 · B / d, so that lr / B is lr0 / d always. Sievert and Shah, 2021 ---

DECAY_PAST_MAXIMUM = RateEntry(
    name="DecayPastMaximum",
    summary="is initial · B / d: it falls as soon as the growth wants more than batch.maximum",
    source="Sievert and Shah, 2021",
    implementation=lambda rate, _initial, wanted, used: rate * used / wanted,
    falls_past_maximum=True,
    idle=always_acts,  # it is the default, so it may not have been chosen on purpose
)


# --- Linear: lr = lr0 · B / B0. Goyal et al., 2017 ---

LINEAR = RateEntry(
    name="Linear",
    summary="is initial · B / batch.initial",
    source="Goyal et al., 2017",
    implementation=lambda rate, initial, _wanted, used: rate * used / initial,
)


# --- SquareRoot: lr = lr0 · sqrt(B / B0), for adaptive optimizers. Krizhevsky, 2014; Malladi et al., 2022, for Adam ---

SQUARE_ROOT = RateEntry(
    name="SquareRoot",
    summary="is initial · sqrt(B / batch.initial), as suits Adam and AdamW",
    source="Krizhevsky, 2014; Malladi et al., 2022",
    implementation=lambda rate, initial, _wanted, used: rate * square_root(Fraction(used, initial)),
)


# --- AdaScale: lr = lr0 · r, where r is what a batch of B gains over one of B0. Johnson et al., 2020 ---
# r = (tr(Σ) / B0 + |G|²) / (tr(Σ) / B + |G|²): the expected squared norm of the gradient of a batch of B0 over that
# of a batch of B. It is near B / B0 while noise dominates, and near 1 once the expected gradient does.

ADAPTIVE = ["Adagrad", "Adam", "AdamW", "LAMB", "LARS", "LBFGS", "RMSprop"]
"""The optimizers whose steps do not grow with the gradient."""


class AdaScaleBlock(Windows):
    """How often the gain is measured again. AdaScale is by Johnson et al., 2020."""


def gain(signals: Signals, initial: int, used: int) -> float:
    """Return the gain of a batch of `used` examples over a batch of `initial`: from 1 to used / initial.

    An estimate below 0 counts as 0. The gain is 1 if nothing was measured.
    """
    square = max(signals.square, 0.0)
    trace = max(signals.trace, 0.0)
    seen = square + trace / used
    if seen > 0:
        return (square + trace / initial) / seen
    return 1.0


ADA_SCALE = RateEntry(
    name="AdaScale",
    summary="is initial · the gain of the larger batch, which training measures",
    source="Johnson et al., 2020",
    block=AdaScaleBlock,
    implementation=lambda rate, _initial, _wanted, _used: rate,
    gain=gain,
    idle=gain_idle,
    outer_rules={
        "JobSpec": (
            Rule(
                "learningRate.rule",
                f"give another rule with {', '.join(ADAPTIVE)}: AdaScale suits the steps of SGD",
                lambda s: s.learning_rate.rule != "AdaScale" or s.optimizer.type not in ADAPTIVE,
                f"self.learningRate.rule != 'AdaScale' || !(self.optimizer.type in {ADAPTIVE})",
            ),
            Rule(
                "batch.shard",
                "give a shard smaller than batch.maximum: AdaScale compares the gradients of two shards or more",
                lambda s: s.learning_rate.rule != "AdaScale" or s.shard < s.batch.maximum,
                "self.learningRate.rule != 'AdaScale' || self.batch.maximum > "
                "(has(self.batch.shard) ? self.batch.shard : self.workers.examplesPerWorker)",
            ),
        ),
    },
)
