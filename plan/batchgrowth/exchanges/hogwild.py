"""Hogwild: threads of one process update the same weights without locks. Recht, Ré, Wright and Niu, 2011."""

from pydantic import Field

from batchgrowth.extend import ExchangeEntry, Model, Rule


class Hogwild(Model):
    """The threads that share the weights."""

    threads: int = Field(
        4,
        ge=1,
        le=256,
        description="Threads of the trainer that each compute whole updates; the trainer needs as many processors, "
        "times workers.threads. 1 has the weights of SingleProcess; with more they differ from run to run. Default: 4.",
    )


ENTRY = ExchangeEntry(
    name="Hogwild",
    summary="has threads of one process update the same weights without locks, so weights differ from run to run",
    source="Recht, Ré, Wright and Niu, 2011",
    block=Hogwild,
    implementation="batchgrowth_trainer.drivers.hogwild:train",
    uses_workers=False,
    promise="Nondeterministic",
    example={"threads": 2},
    outer_rules={
        "JobSpec": (
            Rule(
                "compile",
                "leave it out with exchange Hogwild: torch compiles for one thread at a time",
                lambda s: s.exchange.type != "Hogwild" or not s.compile,
                "self.exchange.type != 'Hogwild' || !has(self.compile) || !self.compile",
            ),
            Rule(
                "workers.loaders",
                "give 0 with exchange Hogwild: its threads read by themselves",
                lambda s: s.exchange.type != "Hogwild" or s.workers.loaders == 0,
                "self.exchange.type != 'Hogwild' || self.workers.loaders == 0",
            ),
        ),
    },
)
