"""What a worker costs for an hour, from a file in the format of SkyPilot's catalogs.

`offer_of` in command.py takes it from here (`--prices`), or from `--price-per-worker-hour`.

Such a file is a CSV with the columns InstanceType, AcceleratorCount, Price, SpotPrice and Region, and others that are
not used here. A worker has one accelerator, so an instance with eight of them holds eight workers.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import isfinite
from pathlib import Path

from batchgrowth.errors import Fault, SpecError
from batchgrowth.manifest.files import open_given

LARGEST_BYTES = 1 << 26
"""The largest catalog that is read."""
COLUMNS = ("InstanceType", "Price", "SpotPrice")
"""Columns that a catalog must have."""
MOST_NAMED = 5
"""The most instances that a message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a worker costs for an hour, in dollars; `instance` is None if the user gave the price without a catalog."""

    instance: str | None
    region: str
    spot: bool
    worker_hour: float

    def __str__(self) -> str:
        kind = "spot" if self.spot else "on demand"
        return f"{self.instance} in {self.region or 'any region'}, {kind}: ${self.worker_hour:.4g} per worker and hour"


def read_offer(path: Path, instance: str | None, region: str | None, *, spot: bool) -> Offer:
    """Return the cheapest offer of an instance in a catalog; without a region, the cheapest of all regions.

    Raises SpecError, naming the option and a remedy, if the file is no catalog, if it has several instances and none is
    named, if it lacks the instance or the region, or if the instance has no price above 0.
    """
    rows = _rows(path)
    known = sorted({row["InstanceType"] for row in rows})
    if instance is None:
        if len(known) > 1:
            raise SpecError([Fault("--instance", f"missing, and {path} has {len(known)}", f"give {_some(known)}")])
        instance = known[0]
    of_instance = [row for row in rows if row["InstanceType"] == instance]
    if not of_instance:
        raise SpecError([Fault("--instance", f"{instance!r}, which {path} does not have", f"give {_some(known)}")])
    regions = sorted({row.get("Region") or "" for row in of_instance})
    if region is not None:
        of_instance = [row for row in of_instance if row.get("Region") == region]
    if not of_instance:
        raise SpecError([Fault("--region", f"{region!r}, where {path} has no {instance}", f"give {_some(regions)}")])
    column = "SpotPrice" if spot else "Price"
    priced = []
    for row in of_instance:
        price = _number(path, row, column)
        if price:  # an instance that a region does not offer has an empty price, or 0
            workers = max(1.0, _number(path, row, "AcceleratorCount") or 1.0)
            priced.append((price / workers, row))
    if not priced:
        raise SpecError(
            [
                Fault(
                    f"--prices {path}",
                    f"no {column} above 0 for {instance}",
                    "give another --instance, or the price itself with --price-per-worker-hour",
                )
            ]
        )
    worker_hour, cheapest = min(priced, key=lambda one: one[0])
    return Offer(instance=instance, region=cheapest.get("Region") or "", spot=spot, worker_hour=worker_hour)


def _rows(path: Path) -> Sequence[Mapping[str, str]]:
    remedy = f"give a CSV with the columns {', '.join(COLUMNS)}, as SkyPilot's catalogs have them"
    try:
        with open_given(path) as file:
            text = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise SpecError([Fault(f"--prices {path}", f"cannot be read ({reason})", remedy)]) from error
    if len(text) > LARGEST_BYTES:
        raise SpecError([Fault(f"--prices {path}", f"more than {LARGEST_BYTES:,} bytes", remedy)])
    try:
        reader = csv.DictReader(StringIO(text.decode("utf-8-sig")), restval="")
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise SpecError([Fault(f"--prices {path}", f"no column {missing[0]}", remedy)])
        rows = [row for row in reader if row["InstanceType"]]
    except UnicodeDecodeError as error:
        raise SpecError([Fault(f"--prices {path}", "no text", remedy)]) from error
    except csv.Error as error:
        raise SpecError([Fault(f"--prices {path}", f"no CSV ({error})", remedy)]) from error
    if not rows:
        raise SpecError([Fault(f"--prices {path}", "no instance", remedy)])
    return rows


def _number(path: Path, row: Mapping[str, str], column: str) -> float | None:
    """Return the number in a cell; None if it is empty. Raises SpecError if it is not a number of at least 0."""
    text = row.get(column) or ""
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not isfinite(number) or number < 0:
        name = f"{column} of {row['InstanceType']}"
        raise SpecError([Fault(f"--prices {path}", f"{name} is {text!r}", "give a number of at least 0")])
    return number


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMED])
    if len(names) > MOST_NAMED:
        return f"one of {shown}, …"
    return shown
