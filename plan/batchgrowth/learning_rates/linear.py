"""Linear: lr = lr0 · B / B0. Goyal et al., 2017."""

from batchgrowth.extend import RateEntry

ENTRY = RateEntry(
    name="Linear",
    summary="is initial · B / batch.initial",
    source="Goyal et al., 2017",
    implementation=lambda rate, initial, _wanted, used: rate * used / initial,
)
