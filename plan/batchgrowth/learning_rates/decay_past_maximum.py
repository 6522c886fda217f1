"""DecayPastMaximum: lr = lr0 · B / d, so that lr / B is lr0 / d always. Sievert and Shah, 2021."""

from batchgrowth.extend import RateEntry

ENTRY = RateEntry(
    name="DecayPastMaximum",
    summary="is initial · B / d, so that it falls as soon as more than batch.maximum is wanted",
    source="Sievert and Shah, 2021",
    implementation=lambda rate, _initial, wanted, used: rate * used / wanted,
    falls_past_maximum=True,
)
