"""All experiments by name."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from batchgrowth.errors import Fault, SpecError

from batchgrowth_trainer.paper.experiment import Experiment
from batchgrowth_trainer.paper.figures import FIGURES, table1, table2

EXPERIMENTS: Mapping[str, Callable[[], Experiment]] = {
    "table1": table1,
    "table2": table2,
    **FIGURES,
}
"""The experiments that need no training."""
TRAINED = ("accuracy", "fig3", "fig4")
"""The experiments that train for minutes, which all share the same runs."""
WORKLOADS = ("digits", "cifar10")
"""The data that the experiments in TRAINED can train on."""
ALL = "all"
"""The name that stands for all experiments that need no training."""
HOW_TO_TRAIN = f"Figs 3 and 4 train for minutes: batchgrowth paper {' '.join(TRAINED)}"
RUNS = Path("runs") / "paper"


def made(
    *names: str,
    workload: str | None = None,
    data: Path | None = None,
    seeds: int | None = None,
    runs: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Experiment, ...]:
    """Return the experiments of these names; `all` stands for those that need no training.

    The others train on `workload`, by default the digits, with `seeds` seeds from 0 on, and keep their runs in a folder
    below `runs`; `data` is CIFAR-10's folder, and `say` receives a line for each run.

    Raises SpecError if there is no such experiment or a setting would be ignored, and what training raises.
    """
    unknown = [name for name in names if name not in (*EXPERIMENTS, *TRAINED, ALL)]
    if unknown:
        known = ", ".join((*EXPERIMENTS, *TRAINED))
        raise SpecError([Fault("NAME", repr(name), f"give {known} or {ALL}") for name in unknown])
    asked = list(dict.fromkeys(each for name in names for each in (EXPERIMENTS if name == ALL else (name,))))
    _refuse_what_would_be_ignored(asked, workload, data, {"--seeds": seeds, "--runs": runs})
    made_of: dict[str, Experiment] = {name: EXPERIMENTS[name]() for name in asked if name in EXPERIMENTS}
    if set(asked) & set(TRAINED):
        # Load torch, which takes seconds and which the other experiments do not need.
        from batchgrowth_trainer.paper.trained_figures import FROM_RUNS
        from batchgrowth_trainer.paper.trainings import DEFAULT_SEEDS, problem_of, trained

        problem = problem_of(workload or WORKLOADS[0], data)
        comparison = trained(problem, seeds or DEFAULT_SEEDS, (runs or RUNS) / (workload or WORKLOADS[0]), say)
        made_of |= {name: FROM_RUNS[name](comparison) for name in asked if name in TRAINED}
    return tuple(made_of[name] for name in asked)


def _refuse_what_would_be_ignored(
    asked: Sequence[str], workload: str | None, data: Path | None, others: Mapping[str, object]
) -> None:
    given = {"--workload": workload, "--data": data, **others}
    if not set(asked) & set(TRAINED):
        remedy = f"leave it out, or ask for an experiment that trains: {', '.join(TRAINED)}"
        faults = [Fault(option, str(value), remedy) for option, value in given.items() if value is not None]
    elif data is not None and workload != "cifar10":
        faults = [Fault("--data", str(data), "leave it out, or add --workload cifar10")]
    else:
        faults = []
    if workload is not None and workload not in WORKLOADS:
        faults.append(Fault("--workload", repr(workload), f"give {' or '.join(WORKLOADS)}"))
    if faults:
        raise SpecError(faults)
