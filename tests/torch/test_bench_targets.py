"""What `make bench` says of an epoch's end, and of the targets of a single worker."""

from batchgrowth_trainer.record.history import HistoryRow

from bench.epoch_ends import EpochEnds, costs_of
from bench.results import Machine, Results, targets
from bench.rounds import Figures, Measured, Spread
from bench.systems import DATALOADER, OUR_LOADERS, OUR_ONE, PLAIN


def row(update: int, seconds: float) -> HistoryRow:
    """The row of an update of a job with four updates an epoch."""
    return HistoryRow(update, update / 4, 0, 64, 0.01, 1.0, 1, 0.0, 0.0, 0.0, seconds)


def measured(name: str, batch: int, systems: tuple[str, str], times: tuple[float, float]) -> Measured:
    ratio = times[1] / times[0]
    figures = [
        Figures(systems[0], 0, Spread(times[0], times[0], times[0]), Spread(1, 1, 1), 0.0),
        Figures(systems[1], batch, Spread(times[1], times[1], times[1]), Spread(ratio, ratio, ratio), 0.0),
    ]
    return Measured("", name, batch, 8, 4, 1, "", figures, 1)


def test_an_epochs_end_costs_what_the_update_after_it_takes_longer() -> None:
    seconds = [1.0, 2.0, 3.0, 4.0, 7.0, 8.0, 9.0, 10.0, 10.5, 11.5]
    update, costs = costs_of([row(number, at) for number, at in enumerate(seconds, start=1)])

    assert 1.0 == update
    assert [2.0, -0.5] == costs


def test_targets_of_a_single_worker() -> None:
    cases = [
        measured("mlp", 64, (PLAIN, OUR_ONE), (1.0, 1.25)),
        measured("digits", 64, (PLAIN, OUR_ONE), (10.0, 10.6)),
        measured("images", 32, (DATALOADER, OUR_LOADERS), (1.0, 1.04)),
    ]
    ends = [EpochEnds("mlp-64", 1437, 0.001, [0.001, 0.002, 0.012])]
    found = targets(Results(Machine("", 2, "", "", private_network=True), False, cases, [], ends))

    judged = [(target.measured, target.met) for target in found if target.met is not None]
    assert [
        ("1.250 (1.250 to 1.250)", True),
        ("1.060 (1.060 to 1.060)", False),
        ("0.962 (0.962 to 0.962)", True),
        ("2.00 ms over 3 ends", True),
    ] == judged
