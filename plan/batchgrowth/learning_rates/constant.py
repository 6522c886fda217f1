"""Constant: lr = lr0."""

from batchgrowth.extend import RateEntry

ENTRY = RateEntry(
    name="Constant",
    summary="stays as it is",
    implementation=lambda rate, _initial, _wanted, _used: rate,
)
