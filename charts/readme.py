"""The chart's README: what it is, and a table of its values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from charts.values import Value

HEAD = """\
# batchgrowth

Trains PyTorch models whose batch grows by a plan, on Dask workers that follow the batch.
The chart installs the operator, the CustomResourceDefinition `BatchGrowthJob`, roles for users and a Grafana dashboard.
It brings the Dask operator along, for clusters that have none yet.

```console
$ python -m charts vendor
$ helm install batchgrowth charts/batchgrowth --namespace batchgrowth-system --create-namespace --wait
$ helm test batchgrowth --namespace batchgrowth-system
$ kubectl apply -f examples/digits.yaml
$ kubectl get bgj --watch
```

The first command puts the Dask operator's chart where Helm looks for it.
It comes out of the installed Python package `dask-kubernetes`; a chart that is packaged already has it inside.
More is in [docs/chart.md](../../docs/chart.md).

## Values

This table is made from `values.yaml`.
A key that it does not have is refused by `values.schema.json`, which is made from the same file.

| key | default | what it says |
|---|---|---|
"""


def readme(values: Iterable[Value]) -> str:
    """The text of README.md."""
    return HEAD + "".join(f"| `{'.'.join(v.path)}` | {_default(v)} | {v.sentence} |\n" for v in _leaves(values))


def _leaves(values: Iterable[Value]) -> Iterator[Value]:
    """Every key, parents before their children."""
    for value in values:
        yield value
        yield from _leaves(value.children)


def _default(value: Value) -> str:
    return "" if value.children else f"`{json.dumps(value.default, ensure_ascii=False)}`"
