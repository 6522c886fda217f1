"""What the paper says of its experiments: the schedules, and the numbers that it published."""

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
"""Workers that computed at a time in the simulations: the threads of the one process that they ran in."""
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
"""The training time of Table 1, which is that of the centralized architecture."""
