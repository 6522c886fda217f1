"""A status under a CRD that is older than the operator."""

from typing import Any

import pytest
from batchgrowth_operator.api.apply import Writer, without_undeclared
from batchgrowth_operator.api.cache import Store
from batchgrowth_operator.api.client import Refused
from batchgrowth_operator.api.events import EventPoster
from batchgrowth_operator.job.reconcile import Writes
from batchgrowth_operator.seen.observed import Failure, Observed, Ref

HEAD = "failed to create typed patch object (default/digits; batchgrowth.dev/v1alpha1, Kind=BatchGrowthJob): "
STATUS = {
    "phase": "Training",
    "workers": {"ready": 1, "spare": 2},
    "history": [{"index": 0, "note": "x"}, {"index": 1}],
    "conditions": [{"type": "Training"}, {"type": "New"}],
}


@pytest.mark.parametrize(
    ("errors", "kept"),
    [
        (".status.phase: field not declared in schema", {k: v for k, v in STATUS.items() if k != "phase"}),
        (".status.workers.spare: field not declared in schema", STATUS | {"workers": {"ready": 1}}),
        (
            "errors:\n  .status.history[0].note: field not declared in schema\n"
            "  .status.workers.spare: field not declared in schema",
            STATUS | {"workers": {"ready": 1}, "history": [{"index": 0}, {"index": 1}]},
        ),
        (".status.unknown.field: field not declared in schema", STATUS),
        (".status.phase.inner: field not declared in schema", STATUS),
        (
            'status.conditions[1].type: Unsupported value: "New": supported values: "Training"',
            STATUS | {"conditions": [{"type": "Training"}]},
        ),
        ('status.phase: Unsupported value: "x"', None),
    ],
)
def test_what_the_api_server_calls_undeclared_is_left_out(errors: str, kept: Any) -> None:
    assert kept == without_undeclared(STATUS, HEAD + errors)


class OldCrd:
    """An API server that refuses a field of the status, or the whole."""

    def __init__(self, refusal: str) -> None:
        self.refusal = refusal

    def within(self, seconds: float) -> Any:
        return self

    def apply(self, manifest: Any, subresource: str) -> Any:
        if "phase" in manifest["status"]:
            raise Refused(500, self.refusal)
        if len(manifest["status"]["conditions"]) > 1:
            raise Refused(422, 'status.conditions[1].type: Unsupported value: "New"')
        return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": "2"}}


@pytest.mark.fault("B05")
def test_the_rest_is_written(make_world: Any) -> None:
    job = make_world().job
    job["metadata"]["resourceVersion"] = "1"
    seen = Observed(job=job, now=make_world().now)
    store = Store()

    decision, poster = Writes(status=dict(STATUS)), EventPoster(None)  # type: ignore[arg-type]

    old = OldCrd(".status.phase: field not declared in schema")
    assert Writer(old, store, poster).carry_out(seen, decision) == ()  # type: ignore[arg-type]
    assert list(store.versions("BatchGrowthJob").values()) == [2]

    [refused] = Writer(OldCrd("no such luck"), store, poster).carry_out(seen, decision)  # type: ignore[arg-type]
    assert Failure(Ref("BatchGrowthJob", "digits"), 500, "no such luck") == refused
