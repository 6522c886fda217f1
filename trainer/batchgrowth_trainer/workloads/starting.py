"""`batchgrowth init`: a folder with a workload and a manifest that train, to begin with."""

import keyword
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from batchgrowth.errors import Fault, SpecError
from batchgrowth.manifest.documents import as_yaml
from batchgrowth.schema import JOB_NAME
from batchgrowth.spec.job import LONGEST_JOB_NAME

_MANIFEST = """\
# Train: batchgrowth run {folder}/job.yaml
# Look at the plan first: batchgrowth plan {folder}/job.yaml
apiVersion: batchgrowth.dev/v1alpha1
kind: BatchGrowthJob
metadata:
  {name}
spec:
  workload:
    entrypoint: "{module}:workload"
    arguments: {{hidden: "64"}}
    examples: 1437
  epochs: 30
  batch:
    initial: 32
    maximum: 256
    growth: {{type: Geometric, geometric: {{factor: "2", everyEpochs: 8}}}}
  learningRate: {{initial: "0.1"}}
  optimizer: {{type: SGD, sgd: {{momentum: "0.9"}}}}
  workers: {{examplesPerWorker: 128, minimum: 1, maximum: 2}}
"""


def begin(folder: Path) -> tuple[Path, Path]:
    """Write the workload and the manifest into a new folder; return their paths. The job is named after the folder.

    Raises SpecError if that name is no job name, or if the folder exists already or cannot be made.
    """
    name = folder.name
    if not re.match(JOB_NAME, name) or len(name) > LONGEST_JOB_NAME:
        remedy = (
            f"give lower-case letters, digits and dashes, a letter first, at most {LONGEST_JOB_NAME}, such as my-model"
        )
        raise SpecError([Fault("NAME", f"{name!r} is not a valid job name", remedy)])
    module = name.replace("-", "_")
    # A module that is there already would be imported in place of the new one, or be hidden by it.
    if keyword.iskeyword(module) or find_spec(module) is not None:
        raise SpecError([Fault("NAME", f"{module} is the name of another Python module", "give another name")])
    text = files("batchgrowth_trainer.workloads").joinpath("starter.py").read_text(encoding="utf-8")
    named = as_yaml({"name": name}).strip()  # in quotes if YAML has another meaning for it, such as true
    code = folder / f"{module}.py"
    manifest = folder / "job.yaml"
    try:
        folder.mkdir(parents=True)
        code.write_text(text, encoding="utf-8")
        manifest.write_text(_MANIFEST.format(folder=folder, name=named, module=module), encoding="utf-8")
    except OSError as error:
        raise SpecError(
            [Fault("NAME", f"{folder}: {error.strerror}", "give a folder that is not there yet")]
        ) from error
    return code, manifest
