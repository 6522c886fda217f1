"""The loop that users of Dask write: the model scattered, a task per worker, the gradients gathered, a step.

The paper's code does it so (AdaDamp over Dask; Sievert and Shah, 2021), with nothing but Dask's public calls. Workers
may not join or leave, and a lost one ends it.
"""

from __future__ import annotations

from functools import lru_cache
from time import perf_counter

import numpy as np
import torch
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.plan import make_plan
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.building import build_workload
from batchgrowth_trainer.replica.data import fetch
from batchgrowth_trainer.replica.reproducible import prepare_process
from batchgrowth_trainer.workload import Workload
from distributed import Client

from bench.baselines import Sample, shares
from bench.loopback import sent_bytes

State = dict[str, np.ndarray]


def measure(job: BatchGrowthJob, scheduler: str, warm: int) -> Sample:
    """Return the means over the updates of the job's plan after the first `warm`, by the clock of the loop."""
    spec = job.spec
    plan = make_plan(spec)
    text = job.model_dump_json(by_alias=True)
    workload = build_workload(spec)
    parameters = dict(workload.model.named_parameters())
    optimizer = torch.optim.SGD(parameters.values(), lr=float(spec.learning_rate.initial), momentum=0.9)
    with Client(scheduler) as client:
        workers = sorted(client.scheduler_info()["workers"])
        parts = zip(*(shares(spec, plan, rank, len(workers)) for rank in range(len(workers))), strict=True)
        began = 0.0
        before = 0
        for update, indices in enumerate(parts):
            if update == warm:
                began = perf_counter()
                before = sent_bytes()
            state = {name: tensor.numpy() for name, tensor in workload.model.state_dict().items()}
            model = client.scatter(state, broadcast=True, hash=False)
            tasks = [
                client.submit(_gradient, text, model, part, workers=[worker], pure=False)
                for worker, part in zip(workers, indices, strict=True)
            ]
            gradients = client.gather(tasks)
            for name, parameter in parameters.items():
                parameter.grad = torch.from_numpy(np.mean([gradient[name] for gradient in gradients], axis=0))
            optimizer.step()
        timed = plan.updates - warm
        return Sample((perf_counter() - began) / timed * 1e3, (sent_bytes() - before) / timed)


def _gradient(job: str, state: State, indices: torch.Tensor) -> State:
    """Return the mean gradient of these examples, by name, with the model's state."""
    workload = _workload(job)
    model = workload.model
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.items()})
    model.zero_grad()
    inputs, target = fetch(workload.train, indices)
    workload.loss(model(inputs), target).mean().backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad.numpy() for name, parameter in model.named_parameters() if parameter.grad is not None}


@lru_cache(maxsize=1)
def _workload(job: str) -> Workload:
    """Build the worker's workload, once."""
    spec = read_manifest(job).spec
    prepare_process(spec)
    workload = build_workload(spec)
    workload.model.train()
    return workload
