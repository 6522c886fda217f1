"""Downpour: workers push gradients to a server and fetch weights, each at its own pace. Dean et al., 2012."""

from pydantic import Field

from batchgrowth.extend import ExchangeEntry, Model, Rule

DEFAULT_STALENESS = 16


class Downpour(Model):
    """How far behind the weights a gradient may be."""

    maximum_staleness: int = Field(
        DEFAULT_STALENESS,
        ge=0,
        le=1000,
        description="Most updates that the server makes between the fetch of weights and the push of the gradient; "
        "a worker waits before it would cause more. 0 has one worker compute at a time. Unit: updates. Default: 16.",
    )


ENTRY = ExchangeEntry(
    name="Downpour",
    summary="has workers push gradients to a server and fetch weights, each at its own pace, so weights differ from "
    "run to run",
    source="Dean et al., 2012",
    block=Downpour,
    implementation="batchgrowth_trainer.drivers.all_reduce:train",
    promise="Nondeterministic",
    all_connected=True,
    longest_round=lambda _: 2,
    strategy="batchgrowth_trainer.exchange.downpour:Downpour",
    example={"maximumStaleness": 8},
    outer_rules={
        "JobSpec": (
            Rule(
                "compile",
                "leave it out with exchange Downpour: the worker beside the server computes with a second model",
                lambda s: s.exchange.type != "Downpour" or not s.compile,
                "self.exchange.type != 'Downpour' || !has(self.compile) || !self.compile",
            ),
            Rule(
                "workers.maximum",
                "give at most exchange.downpour.maximumStaleness + 1 workers: more cannot compute at once",
                lambda s: (
                    s.exchange.type != "Downpour" or s.workers.maximum <= s.exchange.settings.maximum_staleness + 1
                ),
                "self.exchange.type != 'Downpour' || self.workers.maximum <= (has(self.exchange.downpour) ? "
                f"self.exchange.downpour.maximumStaleness : {DEFAULT_STALENESS}) + 1",
            ),
        ),
    },
)
