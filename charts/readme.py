"""The chart's README, with a table of its values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from charts.values import Value

HEAD = """\
# batchgrowth

Trains PyTorch models with a batch size that grows during training, and adds Dask workers as it grows.
The chart installs the operator, the CustomResourceDefinition `BatchGrowthJob`, roles for users and a Grafana dashboard.

```console
$ make package
$ helm install batchgrowth dist/batchgrowth-0.1.0.tgz -n batchgrowth-system --create-namespace --wait \\
    --values my-values.yaml
$ helm test batchgrowth --namespace batchgrowth-system
$ kubectl apply -f examples/digits.yaml
$ kubectl get bgj --watch
```

`my-values.yaml` names the images, which you build and push: `docs/kubernetes.md`.
`docs/chart.md` explains rights, teams, upgrades and uninstalling.

## Values

This table is generated from `values.yaml`; `values.schema.json` refuses unknown keys.

| key | default | meaning |
|---|---|---|
"""


def readme(values: Iterable[Value]) -> str:
    """Return the text of README.md."""
    return HEAD + "".join(f"| `{'.'.join(v.path)}` | {_default(v)} | {v.sentence} |\n" for v in _leaves(values))


def _leaves(values: Iterable[Value]) -> Iterator[Value]:
    """Every key, parents before their children."""
    for value in values:
        yield value
        yield from _leaves(value.children)


def _default(value: Value) -> str:
    return "" if value.children else f"`{json.dumps(value.default, ensure_ascii=False)}`"
