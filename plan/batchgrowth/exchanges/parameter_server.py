"""ParameterServer: servers with a slice of the parameters each add its gradient and take its step. Li et al., 2014."""

from pydantic import Field

from batchgrowth.extend import ExchangeEntry, Model, Rule

MOST_MEMBERS = 64  # all are connected with each other
_UNDIVIDED = ["Torch", "LBFGS"]
"""Optimizers whose step needs all parameters."""


class ParameterServer(Model):
    """How many slices the parameters are cut into."""

    servers: int | None = Field(
        None,
        ge=1,
        le=MOST_MEMBERS,
        description="Servers, which the workers are besides: each has a slice of whole parameters. The weights do not "
        "depend on it. Default: one on each worker; 1 with optimizer Torch or LBFGS. Example: 2.",
    )


ENTRY = ExchangeEntry(
    name="ParameterServer",
    summary="has servers add the gradients of a slice of the parameters each, step, and send the weights",
    source="Dean et al., 2012; Li et al., 2014",
    block=ParameterServer,
    implementation="batchgrowth_trainer.drivers.all_reduce:train",
    all_connected=True,
    strategy="batchgrowth_trainer.exchange.parameter_server:ParameterServer",
    example={"servers": 2},
    outer_rules={
        "JobSpec": (
            Rule(
                "exchange.parameterServer.servers",
                f"give 1 with optimizer {' or '.join(_UNDIVIDED)}, which needs all parameters at once, or leave it out",
                lambda s: (
                    s.exchange.type != "ParameterServer"
                    or s.optimizer.type not in _UNDIVIDED
                    or s.exchange.settings.servers in (None, 1)
                ),
                f"self.exchange.type != 'ParameterServer' || !(self.optimizer.type in {_UNDIVIDED}) || "
                "!has(self.exchange.parameterServer) || !has(self.exchange.parameterServer.servers) || "
                "self.exchange.parameterServer.servers == 1",
            ),
            Rule(
                "workers.maximum",
                f"give at most {MOST_MEMBERS} workers with exchange ParameterServer, where each is connected with all",
                lambda s: s.exchange.type != "ParameterServer" or s.workers.maximum <= MOST_MEMBERS,
                f"self.exchange.type != 'ParameterServer' || self.workers.maximum <= {MOST_MEMBERS}",
            ),
        ),
    },
)
