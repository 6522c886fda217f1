"""A job whose batch grows five times, for the tests of a probe."""

from batchgrowth.manifest.reading import read_manifest
from batchgrowth.plan import Plan, make_plan
from batchgrowth.spec import JobSpec

JOB = """
apiVersion: batchgrowth.dev/v1alpha1
kind: BatchGrowthJob
metadata: {name: probed}
spec:
  workload: {entrypoint: "small:net", examples: 1437}
  epochs: 30
  batch: {initial: 32, maximum: 512, growth: {type: Geometric, geometric: {factor: "2", everyEpochs: 5}}}
  learningRate: {initial: "0.05"}
"""


def spec_of(*overrides: str) -> JobSpec:
    return read_manifest(JOB, overrides).spec


def planned(*overrides: str) -> Plan:
    return make_plan(spec_of(*overrides))
