"""SquareRoot: lr = lr0 · sqrt(B / B0), for adaptive optimizers. Krizhevsky, 2014; Malladi et al., 2022, for Adam."""

from fractions import Fraction

from batchgrowth.extend import RateEntry, square_root

ENTRY = RateEntry(
    name="SquareRoot",
    summary="is initial · sqrt(B / batch.initial), as suits Adam and AdamW",
    source="Krizhevsky, 2014; Malladi et al., 2022",
    implementation=lambda rate, initial, _wanted, used: rate * square_root(Fraction(used, initial)),
)
