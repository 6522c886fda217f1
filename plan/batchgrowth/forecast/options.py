"""The values that `batchgrowth forecast` takes, and the errors of those that make no sense."""

import re
from pathlib import Path

from batchgrowth.errors import Fault, SpecError
from batchgrowth.forecast.networks import NETWORKS, named, read_constants
from batchgrowth.forecast.prices import Offer, read_offer
from batchgrowth.forecast.step_time import Constants
from batchgrowth.spec.workers import MOST_WORKERS

ALL_WORKERS = "workers"
"""The value of --slots with which all workers compute at once."""
LARGEST_PRICE = 1e9
"""In dollars."""
LARGEST_PERCENT = 100.0

_PARTS = re.compile(r"(\d+(?:\.\d+)?)(d|h|min|m|s)")
_SECONDS = {"d": 86_400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}
LONGEST_SECONDS = 1e9
"""The longest time that an option takes, in seconds; about thirty years."""


def seconds_of(option: str, text: str) -> float:
    """Return the seconds of a time such as `8h`, `90min` or `1d12h`. Raises SpecError for another text."""
    parts = _PARTS.findall(text)
    if parts and _PARTS.sub("", text) == "":
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        if 0 < seconds <= LONGEST_SECONDS:
            return seconds
    raise SpecError([Fault(option, repr(text), "give a time above 0, such as 8h, 90min or 1d12h")])


def slots_of(text: str) -> int | None:
    """Return how many workers compute at a time; None: all of them. Raises SpecError for another text."""
    if text == ALL_WORKERS:
        return None
    if text.isascii() and text.isdigit() and 0 < int(text) <= MOST_WORKERS:
        return int(text)
    remedy = f"give a number from 1 to {MOST_WORKERS}, or {ALL_WORKERS} if all compute at once"
    raise SpecError([Fault("--slots", repr(text), remedy)])


def dollars_of(option: str, amount: float | None) -> float | None:
    """Return an amount of money. Raises SpecError if it is not above 0."""
    if amount is not None and not 0 < amount <= LARGEST_PRICE:
        raise SpecError([Fault(option, f"{amount:g}", "give dollars above 0, or leave the option out")])
    return amount


def share_of(option: str, percent: float) -> float:
    """Return a percentage as a share. Raises SpecError if it is not above 0 and at most 100."""
    if not 0 < percent <= LARGEST_PERCENT:
        raise SpecError([Fault(option, f"{percent:g}", "give a percentage above 0 and at most 100, such as 2")])
    return percent / 100


def network_of(name: str) -> tuple[Constants, ...]:
    """Return the constants of a network with a name, or those of a file. Raises SpecError if there are none."""
    if name in NETWORKS:
        return named(name)
    return (read_constants(Path(name)),)


def offer_of(
    prices: Path | None, price: float | None, instance: str | None, region: str | None, *, spot: bool
) -> Offer | None:
    """Return what a worker costs, by the options; None if they name no price.

    Raises SpecError for a price that is not above 0, for two prices, and for an option that needs a catalog.
    """
    if prices is None:
        for option, value in (("--instance", instance), ("--region", region)):
            if value is not None:
                raise SpecError(
                    [Fault(option, repr(value), "give the catalog that has it with --prices, or remove it")]
                )
        amount = dollars_of("--price-per-worker-hour", price)
        return None if amount is None else Offer(instance=None, region="", spot=spot, worker_hour=amount)
    if price is not None:
        raise SpecError([Fault("--price-per-worker-hour", f"{price:g}, and --prices too", "give one of them")])
    return read_offer(prices, instance, region, spot=spot)
