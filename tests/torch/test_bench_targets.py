"""What `make bench` says of an epoch's end, and of the targets of a single worker."""

from batchgrowth_trainer.record.history import HistoryRow

from bench.baselines import Sample, sample_of
from bench.cases import cases
from bench.epoch_ends import EpochEnds, costs_of
from bench.results import Machine, Results, targets
from bench.rounds import Figures, Measured, Spread, of_round
from bench.systems import DATALOADER, DDP, OUR_GATHER, OUR_LOADERS, OUR_ONE, OUR_REDUCE, PLAIN


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


def test_all_reduce_takes_no_longer_than_ddp() -> None:
    """With a model of images; a comparison without AllReduce says nothing of it."""
    rivals = [
        measured("wrn", 64, (DDP, OUR_REDUCE), (1000.0, 1010.0)),
        measured("vgg11", 256, (DDP, OUR_REDUCE), (2000.0, 1990.0)),
        measured("mlp", 512, (DDP, OUR_GATHER), (1.0, 1.0)),
    ]
    found = targets(Results(Machine("", 2, "", "", private_network=True), False, rivals, [], []))

    judged = {target.promise: target.met for target in found if target.met is not None and "DDP" in target.promise}
    assert {
        "AllReduce at most 1 times DDP, wrn 64": False,
        "AllReduce at most 1 times DDP, vgg11 256": True,
    } == judged


def test_some_systems_of_a_case_are_compared_with_its_first() -> None:
    [case] = [case for case in cases(quick=True) if case.name == "all-vgg11-8"]

    assert case.systems() == case.compared([])
    assert [DDP, OUR_REDUCE] == [system.name for system in case.compared([OUR_REDUCE])]
    assert [DDP] == [system.name for system in case.compared([DDP])]


def test_a_run_is_timed_in_blocks_of_a_quarter_second() -> None:
    sample = sample_of([0.0, 0.1, 0.2, 0.4, 0.6, 0.7], sent=3.0)

    assert (140.0, 3.0) == (round(sample.ms, 6), sample.sent)
    assert [100.0, 200.0] == [round(ms, 6) for ms in sample.blocks]  # of two updates, and the last is left over
    assert [500.0, 1000.0] == [round(ms, 6) for ms in sample_of([1.0, 1.5, 2.5]).blocks]


def test_other_load_for_seconds_does_not_move_the_time_of_a_round() -> None:
    quiet, busy = Sample(1.0, 20.0, (1.0, 1.0, 1.0)), Sample(2.0, 10.0, (1.0, 2.5, 2.5))

    assert Sample(1.0, 10.0) == of_round([quiet, busy])
    assert busy == of_round([busy])
