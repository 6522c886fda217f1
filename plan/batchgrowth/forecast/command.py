"""`batchgrowth forecast`: the options it takes, and what a job will take, printed before anything starts."""

import json
import pkgutil
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from batchgrowth.errors import Fault, PlanError, SpecError
from batchgrowth.forecast.answers import REPLACE_SECONDS, AffordableWorkers, cheapest
from batchgrowth.forecast.course_time import exchanges_per_update
from batchgrowth.forecast.networks import NETWORKS, exchanging, named, read_constants, with_network
from batchgrowth.forecast.prices import Offer, read_offer
from batchgrowth.forecast.sentences import (
    Forecasted,
    Questions,
    forecast_list,
    forecast_table,
    forecasted,
    number,
    sentences,
    unit_of,
)
from batchgrowth.forecast.step_time import Constants
from batchgrowth.manifest.documents import as_yaml
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import make_plan
from batchgrowth.spec import BatchGrowthJob
from batchgrowth.spec.workers import MOST_WORKERS
from batchgrowth.terminal import is_too_wide, on_stderr, say

# --- The values of options ---

ALL_WORKERS = "workers"
"""The value of --slots with which all workers compute at once."""
LARGEST_PRICE = 1e9
"""The largest amount that an option takes, in dollars."""
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
    """Return an amount of money, or None if none is given. Raises SpecError if it is not above 0, or is too large."""
    if amount is not None and not 0 < amount <= LARGEST_PRICE:
        remedy = f"give dollars above 0 and at most {LARGEST_PRICE:g}, or leave the option out"
        raise SpecError([Fault(option, f"{amount:g}", remedy)])
    return amount


def share_of(option: str, percent: float) -> float:
    """Return a percentage as a share. Raises SpecError if it is not above 0 and at most 100."""
    if not 0 < percent <= LARGEST_PERCENT:
        raise SpecError([Fault(option, f"{percent:g}", "give a percentage above 0 and at most 100, such as 2")])
    return percent / 100


def network_of(name: str) -> tuple[Constants, ...]:
    """Return the constants of a named network, or else those of a file. Raises SpecError as `read_constants` does."""
    if name in NETWORKS:
        return named(name)
    return (read_constants(Path(name)),)


def offer_of(
    prices: Path | None, price: float | None, instance: str | None, region: str | None, *, spot: bool
) -> Offer | None:
    """Return what a worker costs, by the options; None if they name no price.

    Raises SpecError for a price that is not above 0, for two prices, for an option that lacks its catalog, and as
    `read_offer` does.
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


# --- The command ---

FITTED = "batchgrowth_trainer.forecasting.fitting:fitted"
"""The trainer's function that fits constants to runs: (folders, job) -> Constants."""
MEASURED = "batchgrowth_trainer.forecasting.measuring:measured"
"""The trainer's function that times the job's shards on this machine: (job, folders of modules) -> Timed."""
DRAWN = "batchgrowth_trainer.plots.planned:plot_forecast"
"""The trainer's function that draws a forecast: (Forecasted, path)."""

File = Annotated[Path, typer.Argument(help="A BatchGrowthJob manifest; - reads standard input.", show_default=False)]
Network = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help=f"What the exchange takes: {', '.join(NETWORKS)}, or a file of constants. Without --fit and --measure, it "
        "also says what computing takes.",
    ),
]
Fit = Annotated[
    list[Path] | None,
    typer.Option(metavar="RUN", help="The output folder of a run of the same workload, to fit the constants to."),
]
Measure = Annotated[bool, typer.Option("--measure", help="Time the job's shards on this machine, for 30 s at most.")]
Slots = Annotated[str, typer.Option(metavar="N", help="How many workers compute at a time, if fewer than there are.")]
Prices = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Prices of instances, in the format of SkyPilot's catalogs.")
]
Instance = Annotated[str | None, typer.Option(help="The instance of --prices that a worker runs on.")]
Region = Annotated[str | None, typer.Option(help="The region of --prices. Default: the cheapest.")]
Spot = Annotated[bool, typer.Option("--spot", help="Pay the spot price of --prices; --reclaim-every implies it.")]
Price = Annotated[
    float | None, typer.Option("--price-per-worker-hour", metavar="DOLLARS", help="What a worker costs for an hour.")
]
Deadline = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Print a manifest whose run takes no longer, in 19 of 20 cases: 8h, 90min."),
]
Budget = Annotated[
    float | None, typer.Option(metavar="DOLLARS", help="Print a manifest whose run costs no more, in 19 of 20 cases.")
]
ReclaimEvery = Annotated[
    str | None, typer.Option(metavar="TIME", help="After which time, on average, a worker's machine is reclaimed: 3h.")
]
ReplacedAfter = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help=f"The time until a reclaimed worker's replacement trains. Default: {REPLACE_SECONDS:g}s."
    ),
]
Worth = Annotated[
    float, typer.Option(metavar="PERCENT", help="By how much a worker must shorten the run, to be worth it.")
]
Output = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Draw the forecast, as PNG, SVG or PDF; needs the trainer.")
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field below spec.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def forecast(
    file: File,
    network: Network = None,
    fit: Fit = None,
    measure: Measure = False,
    slots: Slots = ALL_WORKERS,
    prices: Prices = None,
    instance: Instance = None,
    region: Region = None,
    spot: Spot = False,
    price: Price = None,
    deadline: Deadline = None,
    budget: Budget = None,
    reclaim_every: ReclaimEvery = None,
    replaced_after: ReplacedAfter = None,
    worth: Worth = 2.0,
    output: Output = None,
    json_: Json = False,
    set_: Set = None,
) -> None:
    """Print what a job will take, by stage and in all: time, worker-hours and money, each with an interval."""
    places = slots_of(slots)
    reclaims = None if reclaim_every is None else seconds_of("--reclaim-every", reclaim_every)
    if reclaims is None and replaced_after is not None:
        raise SpecError([Fault("--replaced-after", repr(replaced_after), "give --reclaim-every too, or remove it")])
    if spot and prices is None:
        raise SpecError([Fault("--spot", "given", "give the catalog that has spot prices with --prices, or remove it")])
    questions = Questions(
        worth=share_of("--worth", worth),
        offer=offer_of(prices, price, instance, region, spot=spot or reclaims is not None),
        reclaim_every=reclaims,
        replaced_after=(REPLACE_SECONDS if replaced_after is None else seconds_of("--replaced-after", replaced_after)),
    )
    latest = None if deadline is None else seconds_of("--deadline", deadline)
    most = dollars_of("--budget", budget)
    if most is not None and questions.offer is None:
        raise SpecError([Fault("--budget", f"{most:g}", "give a price too: --prices or --price-per-worker-hour")])
    job = load_manifest(file, set_ or (), on_stderr)
    plan = make_plan(job.spec)
    share = exchanges_per_update(job.spec, plan)
    named = constants_of(job, file, network, fit or [], measure=measure, share=share)
    known = [constants.with_slots(places) for constants in named]
    if len(known) > 1 and (latest is not None or most is not None or output is not None):
        names = " or ".join(name for name in NETWORKS if name != network)
        raise SpecError([Fault("--network", f"{network}, which is three networks", f"give one of them: {names}")])

    found = [forecasted(job.spec, plan, constants, questions) for constants in known]
    choice = None
    if latest is not None or most is not None:
        choice = cheapest(found[0].candidates, known[0], questions.price, latest, most)
    if output is not None:
        pkgutil.resolve_name(DRAWN)(found[0], output)
    if json_:
        _print_json(found, choice, job)
    else:
        _print_all(found, job, choice)
    if choice is not None and not choice.kept:
        raise PlanError(unkept(choice, latest, most))


def constants_of(
    job: BatchGrowthJob, file: Path, network: str | None, runs: list[Path], *, measure: bool, share: float
) -> tuple[Constants, ...]:
    """Return the constants that the options name; an update has `share` exchanges on average.

    Raises SpecError if they name none, too many, or none for computing.
    """
    networks = () if network is None else tuple(exchanging(one, share) for one in network_of(network))
    if not runs and not measure:
        if not networks:
            remedy = f"give --fit RUN, --measure, or --network with {', '.join(NETWORKS)} or a file of constants"
            raise SpecError([Fault("--network", "missing", remedy)])
        for one in networks:
            if one.step.seconds(1, 1, 1) <= 0:  # the file has those of a network alone
                remedy = "give stepTime.perExample, the seconds that an example takes, or measure it with --measure"
                given = f"{one.source}, with which computing takes no time"
                raise SpecError([Fault("--network", given, remedy)])
        return networks
    if network == "paper":
        raise SpecError([Fault("--network", "paper, whose computing is the paper's", "give moderate, high or a file")])
    if runs and measure:
        raise SpecError([Fault("--measure", "given, and --fit too", "give one of them")])
    size = None
    if runs:
        constants: Constants = pkgutil.resolve_name(FITTED)(runs, job)
    else:
        constants, size = pkgutil.resolve_name(MEASURED)(job, (file.resolve().parent, Path.cwd()))
    if not networks:
        return (constants,)
    return tuple(with_network(constants, one, size) for one in networks)


def manifest_with(job: BatchGrowthJob, maximum: int) -> dict[str, Any]:
    """Return the manifest as its author wrote it, with another workers.maximum."""
    document: dict[str, Any] = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["spec"].setdefault("workers", {})["maximum"] = maximum
    return document


def unkept(choice: AffordableWorkers, deadline: float | None, budget: float | None) -> str:
    """Return the message that no number of workers keeps what was asked, with the nearest that one keeps."""
    made = choice.made
    unit = unit_of(made.seconds.value)
    asked = []
    if deadline is not None:
        asked.append(f"--deadline: {number(deadline / unit.seconds)} {unit.name}")
    if budget is not None:
        asked.append(f"--budget: ${number(budget)}")
    nearest = f"{number(made.seconds.high / unit.seconds)} {unit.name}"
    if made.money is not None:
        nearest += f" and ${number(made.money.high)}"
    return (
        f"{' and '.join(asked)}; no workers.maximum keeps that in 19 of 20 cases. The nearest is {choice.maximum}, for "
        f"which {nearest} would do"
    )


def _print_json(found: list[Forecasted], choice: AffordableWorkers | None, job: BatchGrowthJob) -> None:
    document: dict[str, Any] = {"forecasts": [one.to_json() for one in found]}
    if choice is not None:
        document["choice"] = {
            "workersMaximum": choice.maximum,
            "kept": choice.kept,
            **choice.made.to_json(),
            "manifest": manifest_with(job, choice.maximum),
        }
    say(json.dumps(document, indent=2))


def _print_all(found: list[Forecasted], job: BatchGrowthJob, choice: AffordableWorkers | None) -> None:
    """Print tables and answers; if a manifest was asked for, it alone goes to standard output."""
    console = Console(stderr=choice is not None)
    for one in found:
        if len(found) > 1:
            console.print(f"{one.made.constants.label}:", style="bold", highlight=False)
        table = forecast_table(one.made)
        if is_too_wide(table, console):
            console.print(forecast_list(one.made), highlight=False)
        else:
            console.print(table)
        console.print()
        for sentence in sentences(one):
            console.print(sentence, highlight=False, soft_wrap=True)
        if one is not found[-1]:
            console.print()
    if choice is not None and choice.kept:
        unit = unit_of(choice.made.seconds.value)
        taken = f"{unit.text(choice.made.seconds)} {unit.name}"
        if choice.made.money is not None:
            taken += f" and ${number(choice.made.money.value)}"
        console.print(f"workers.maximum {choice.maximum} keeps it, with {taken}:\n", highlight=False, soft_wrap=True)
        say(as_yaml(manifest_with(job, choice.maximum)), end="")
