"""What `make bench` says of an epoch's end, and of the targets of a single worker."""

from batchgrowth_trainer.record.history import HistoryRow

from bench.baselines import Sample, sample_of
from bench.cases import DATALOADER, DDP, OUR_GATHER, OUR_LOADERS, OUR_ONE, OUR_REDUCE, PLAIN, cases
from bench.checks import Checks
from bench.checks import costs_of as costs_of_checks
from bench.cs744 import CASE, REPORT_TASKS, table_rows
from bench.epoch_ends import EpochEnds, costs_of
from bench.pauses import Pauses
from bench.results import Results, Target, targets
from bench.rounds import Figures, Measured, of_round
from bench.tables import Spread


def row(update: int, seconds: float) -> HistoryRow:
    """The row of an update of a job with four updates an epoch."""
    return HistoryRow(update, update / 4, 0, 64, 0.01, 1.0, 1, 0.0, 0.0, 0.0, seconds)


def measured(case: str, systems: tuple[str, str], times: tuple[float, float], sent: float = 0.0) -> Measured:
    ratio = times[1] / times[0]
    figures = [
        Figures(systems[0], 0, Spread(times[0], times[0], times[0]), Spread(1, 1, 1), 0.0),
        Figures(systems[1], 64, Spread(times[1], times[1], times[1]), Spread(ratio, ratio, ratio), sent),
    ]
    return Measured(case, 64, 8, 4, 1, figures)


def test_an_epochs_end_costs_what_the_update_after_it_takes_longer() -> None:
    seconds = [1.0, 2.0, 3.0, 4.0, 7.0, 8.0, 9.0, 10.0, 10.5, 11.5]
    update, costs = costs_of([row(number, at) for number, at in enumerate(seconds, start=1)])

    assert update == 1.0
    assert costs == [2.0, -0.5]


def test_a_check_costs_what_the_update_after_it_takes_longer() -> None:
    seconds = [1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.5, 9.5]
    update, costs = costs_of_checks([row(number, at) for number, at in enumerate(seconds, start=1)], 3)

    assert update == 1.0
    assert costs == [1.0, 0.5]
    assert Checks("mlp-64", 3, update, costs).shares == [1 / 3, 0.5 / 3]


def test_what_was_measured_is_judged() -> None:
    """A comparison without AllReduce says nothing of it."""
    cases = [
        measured("wrn-64", (DDP, OUR_REDUCE), (1000.0, 1010.0), sent=22e6),
        measured("all-vgg11-256", (DDP, OUR_REDUCE), (2000.0, 1990.0)),
        measured("mlp-512", (DDP, OUR_GATHER), (1.0, 1.0)),
        measured("alone-mlp-64", (PLAIN, OUR_ONE), (1.0, 1.25)),
        measured("loading-images-32", (DATALOADER, OUR_LOADERS), (1.0, 1.06)),
    ]
    ends = [EpochEnds("mlp-64", 1437, 0.001, [0.001, 0.002, 0.012])]
    pauses = [Pauses("mlp 2-1-2", [0.1] * 50, [0.3] * 50), Pauses("mlp 2-1-2, verified", [9.0], [9.0], verify=True)]

    checks = [Checks("wrn-64", 50, 1.0, [0.25, 0.5, 1.0])]

    assert list(targets(Results(False, cases, pauses, ends, checks=checks))) == [
        Target("AllReduce (ours) at most 1 times torch DDP, wrn-64", "1.010 (1.010 to 1.010)", False),
        Target("AllReduce (ours) at most 1 times torch DDP, all-vgg11-256", "0.995 (0.995 to 0.995)", True),
        Target("one worker (ours) at most 1.3 times plain PyTorch loop, alone-mlp-64", "1.250 (1.250 to 1.250)", True),
        Target(
            "one worker, 2 loaders (ours) at most 1.05 times DataLoader loop, 2 processes, loading-images-32",
            "1.060 (1.060 to 1.060)",
            False,
        ),
        Target("AllReduce moves at most 23 MB, wrn-64", "22.00 MB", True),
        Target("spot checks at most 1% of the time, wrn-64", "1.00% (0.50% to 2.00%) over 3 checks", True),
        Target("an epoch's end at most 5 ms, mlp-64, 1,437 examples", "2.00 ms over 3 ends", True),
        Target("95 of 100 pauses at most 0.25 s, warm, without verify", "300 ms over 100 resizes", False),
    ]


def test_some_systems_of_a_case_are_compared_with_its_first() -> None:
    [case] = [case for case in cases(quick=True) if case.name == "all-vgg11-256"]

    assert list(case.systems) == case.compared([])
    assert [system.name for system in case.compared([OUR_REDUCE])] == [DDP, OUR_REDUCE]
    assert [system.name for system in case.compared([DDP])] == [DDP]


def test_a_run_is_timed_in_blocks_of_a_quarter_second() -> None:
    sample = sample_of([0.0, 0.1, 0.2, 0.4, 0.6, 0.7], sent=3.0)

    assert (round(sample.ms, 6), sample.sent) == (140.0, 3.0)
    assert [round(ms, 6) for ms in sample.blocks] == [100.0, 200.0]  # of two updates, and the last is left over
    assert [round(ms, 6) for ms in sample_of([1.0, 1.5, 2.5]).blocks] == [500.0, 1000.0]


def test_other_load_for_seconds_does_not_move_the_time_of_a_round() -> None:
    quiet, busy = Sample(1.0, 20.0, (1.0, 1.0, 1.0)), Sample(2.0, 10.0, (1.0, 2.5, 2.5))

    assert Sample(1.0, 10.0) == of_round([quiet, busy])
    assert busy == of_round([busy])


def test_the_tasks_of_the_report_are_one_table() -> None:
    """With the published speed-ups beside ours; a case that leaves out a task makes no table."""
    seconds = dict(zip([task.torch for task in REPORT_TASKS], (4.0, 3.2, 2.5, 2.0), strict=True))
    seconds |= {OUR_GATHER: 2.4, OUR_REDUCE: 2.0}
    figures = [
        Figures(system, 0, Spread(1e3 * s, 1e3 * s, 1e3 * s), Spread(s / 2, s / 2, s / 2), 0.0)
        for system, s in seconds.items()
    ]

    assert table_rows(Measured(CASE, 256, 16, 8, 1, figures)) == [
        ("1", "one machine", "1.855", "1.0", "4.000", "1.00", "", ""),
        ("2a", "gather and scatter", "1.304", "1.4", "3.200", "1.25", "2.400", "1.67"),
        ("2b", "all_reduce", "0.932", "2.0", "2.500", "1.60", "2.000", "2.00"),
        ("3", "DistributedDataParallel", "0.664", "2.8", "2.000", "2.00", "", ""),
    ]
    assert table_rows(Measured(CASE, 256, 16, 8, 1, figures[1:])) == []
