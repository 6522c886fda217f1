"""What the paper says of its experiments: the schedules, the numbers that it published, and its five real trainings.

The test accuracies and losses by epoch come from the statistics of github.com/stsievert/adadamp-experiments,
exp-dask/stats, at every tenth epoch. The simulations of the paper replay these trainings with other times.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from batchgrowth.plan import Plan, make_plan
from batchgrowth.spec import BatchGrowthJob

EXAMPLES = 50_000
EPOCHS = 200
EXAMPLES_PER_WORKER = 128
MOST_WORKERS = 125
SLOTS = 4
"""Number of workers that computed at a time in the simulations: the threads of the one process that they ran in."""
NETWORKS = ("centralized", "moderate", "high")
"""The columns of Table 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSchedule:
    """A training of the paper: how its batch grows, its colour in all figures, and its published numbers.

    `minutes` are those of Table 2, a number for each of NETWORKS. `accuracy` is the final test accuracy in percent.
    """

    name: str
    initial: int
    maximum: int
    learning_rate: str
    colour: str
    updates: int
    workers: int
    minutes: tuple[float, float, float]
    accuracy: float

    def job(self) -> BatchGrowthJob:
        """Return the manifest of the training."""
        return BatchGrowthJob.model_validate(
            {
                "apiVersion": "batchgrowth.dev/v1alpha1",
                "kind": "BatchGrowthJob",
                "metadata": {"name": f"table1-{self.maximum}"},
                "spec": {
                    "workload": {
                        "entrypoint": "batchgrowth_trainer.workloads.cifar10_wrn:workload",
                        "examples": EXAMPLES,
                    },
                    "epochs": EPOCHS,
                    "batch": {
                        "initial": self.initial,
                        "maximum": self.maximum,
                        "growth": {"type": "Geometric", "geometric": {"factor": "5", "everyEpochs": 60}},
                    },
                    "learningRate": {"initial": self.learning_rate, "rule": "DecayPastMaximum"},
                    "optimizer": {
                        "type": "SGD",
                        "sgd": {"momentum": "0.9", "nesterov": True, "weightDecay": "0.0005"},
                    },
                    "workers": {"examplesPerWorker": EXAMPLES_PER_WORKER, "minimum": 1, "maximum": MOST_WORKERS},
                },
            }
        )

    def plan(self) -> Plan:
        """Return the plan of the training."""
        return _plan(self)


@cache
def _plan(schedule: PublishedSchedule) -> Plan:
    return make_plan(schedule.job().spec)


# In the order of Table 1, fastest first.
SCHEDULES = (
    PublishedSchedule(
        name="5.1k (*2)", initial=256, maximum=5120, learning_rate="0.1", colour="#CC79A7",
        updates=14_960, workers=40, minutes=(69.9, 45.1, 43.5), accuracy=91.95,
    ),
    PublishedSchedule(
        name="3.2k", initial=128, maximum=3200, learning_rate="0.05", colour="#009E73",
        updates=29_480, workers=25, minutes=(107.2, 67.7, 65.5), accuracy=92.56,
    ),
    PublishedSchedule(
        name="16k", initial=128, maximum=16_000, learning_rate="0.05", colour="#0072B2",
        updates=29_240, workers=125, minutes=(107.5, 67.7, 65.7), accuracy=91.86,
    ),
    PublishedSchedule(
        name="640", initial=128, maximum=640, learning_rate="0.05", colour="#E69F00",
        updates=34_520, workers=5, minutes=(116.9, 73.6, 71.8), accuracy=92.14,
    ),
    PublishedSchedule(
        name="128", initial=128, maximum=128, learning_rate="0.05", colour="#D55E00",
        updates=78_200, workers=1, minutes=(200.2, 121.7, 121.5), accuracy=92.05,
    ),
)  # fmt: skip

TABLE1_MINUTES: Mapping[str, float] = {
    "5.1k (*2)": 69.87,
    "3.2k": 107.17,
    "16k": 107.49,
    "640": 116.86,
    "128": 200.19,
}
"""Schedule -> minutes of training in Table 1, under the centralized architecture."""


AT_EPOCHS = (1, *range(10, 201, 10))
"""The epochs after which the values below were measured."""

ACCURACY: Mapping[str, tuple[float, ...]] = {
    "5.1k (*2)": (
        58.85, 81.21, 85.0, 83.76, 85.39, 86.29, 85.92, 90.27, 90.37, 90.39, 89.48,
        89.23, 89.99, 91.83, 91.97, 91.56, 91.72, 91.93, 91.93, 91.73, 91.95,
    ),
    "3.2k": (
        62.9, 83.7, 82.8, 84.95, 85.63, 86.25, 85.86, 90.71, 90.21, 90.22, 89.58,
        90.5, 89.8, 92.33, 91.82, 91.98, 92.36, 92.31, 92.5, 92.31, 92.56,
    ),
    "16k": (
        59.44, 82.26, 83.34, 85.69, 86.54, 85.24, 86.27, 90.37, 89.44, 90.07, 89.84,
        90.16, 89.12, 91.63, 91.61, 91.65, 91.52, 91.64, 91.8, 91.76, 91.86,
    ),
    "640": (
        60.15, 81.3, 85.16, 84.78, 86.42, 85.88, 84.83, 90.43, 91.0, 90.82, 89.93,
        89.18, 90.35, 91.97, 92.26, 92.16, 91.97, 92.26, 92.27, 92.3, 92.14,
    ),
    "128": (
        59.91, 80.78, 83.6, 84.23, 84.52, 84.24, 85.96, 89.53, 89.89, 89.73, 89.57,
        89.29, 89.62, 91.72, 91.92, 91.75, 91.89, 91.73, 91.72, 91.73, 92.05,
    ),
}  # fmt: skip
"""Schedule -> test accuracy in percent."""

LOSS: Mapping[str, tuple[float, ...]] = {
    "5.1k (*2)": (
        1.1522, 0.5666, 0.4391, 0.4866, 0.4464, 0.4201, 0.4227, 0.3162, 0.3165, 0.3072, 0.3373,
        0.3518, 0.3252, 0.2676, 0.2791, 0.2874, 0.2807, 0.2852, 0.2849, 0.2756, 0.2743,
    ),
    "3.2k": (
        1.0416, 0.4822, 0.5262, 0.4562, 0.419, 0.4132, 0.4272, 0.2986, 0.3043, 0.3101, 0.3322,
        0.3075, 0.3311, 0.2605, 0.2805, 0.2724, 0.2701, 0.2724, 0.2632, 0.2655, 0.257,
    ),
    "16k": (
        1.1202, 0.5299, 0.4994, 0.4342, 0.3985, 0.4296, 0.419, 0.3073, 0.3374, 0.3228, 0.3288,
        0.3167, 0.3581, 0.2756, 0.2815, 0.2795, 0.2911, 0.2876, 0.2812, 0.2715, 0.2681,
    ),
    "640": (
        1.1189, 0.5541, 0.4383, 0.4629, 0.4013, 0.434, 0.4612, 0.3005, 0.2955, 0.3007, 0.332,
        0.3425, 0.3072, 0.2627, 0.2601, 0.2584, 0.2659, 0.261, 0.2645, 0.2601, 0.2605,
    ),
    "128": (
        1.1622, 0.5653, 0.4958, 0.4756, 0.4643, 0.4737, 0.4192, 0.3324, 0.3205, 0.3394, 0.3355,
        0.3423, 0.3332, 0.2805, 0.2761, 0.2802, 0.2771, 0.2822, 0.2814, 0.2775, 0.2713,
    ),
}  # fmt: skip
"""Schedule -> mean test loss."""
