"""The operator crashes, runs twice, or loses the API server or a watched kind: the outcome is the same."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from batchgrowth import names
from operator_field import CLUSTER, TRAINER, Field, live, until


@pytest.mark.fault("B16")
def test_without_the_dask_operator_s_crds(
    make_field: Callable[[], Field], apiserver: Any, dask_crds: list[Path]
) -> None:
    """An operator that starts before the Dask operator is installed reports it, and continues once it is."""
    [crd] = [path for path in dask_crds if "daskcluster" in path.name]
    assert apiserver.kubectl("delete", "-f", crd).returncode == 0
    ground = make_field()
    try:
        ground.start()
        ground.apply()
        until(lambda: ground.condition("ClusterReady"), ("False", "DaskOperatorMissing"))
        assert None is ground.get(TRAINER)
    finally:
        assert apiserver.kubectl("apply", "--server-side", "-f", crd).returncode == 0

    until(ground.is_complete)
    until(lambda: ground.condition("ClusterReady"), ("False", "WaitingForScheduler"))


@pytest.mark.fault("B16")
def test_the_dask_operator_s_crd_goes_while_it_is_watched(ground: Field, apiserver: Any, dask_crds: list[Path]) -> None:
    """And comes back: the operator watches it again, although kopf's watch had ended."""
    ground.apply()
    until(ground.is_complete)
    [crd] = [path for path in dask_crds if "daskcluster" in path.name]
    assert apiserver.kubectl("delete", "-f", crd).returncode == 0
    try:
        until(lambda: ground.condition("ClusterReady"), ("False", "DaskOperatorMissing"))
    finally:
        assert apiserver.kubectl("apply", "--server-side", "-f", crd).returncode == 0

    until(ground.is_complete, seconds=60)
    until(lambda: ground.condition("ClusterReady"), ("False", "WaitingForScheduler"))
    ground.patch(CLUSTER, {"metadata": {"annotations": {names.MANIFEST: "another"}}})
    until(lambda: ground.get(CLUSTER)["metadata"]["annotations"][names.MANIFEST] != "another")  # it is watched again
    ground.delete(CLUSTER)
    until(ground.is_complete)
    assert ground.operators[0].is_alive()


@pytest.mark.fault("B04")
def test_two_operators_make_one_outcome(make_field: Callable[[], Field], tmp_path: Path) -> None:
    ground, logs = make_field(), [tmp_path / "first", tmp_path / "second"]
    for log in logs:
        ground.start(log=log)
    until(lambda: [works(log) for log in logs], [True, True])
    ground.apply()
    until(ground.is_complete)
    ground.report(440)
    until(ground.replicas, 4)
    before = ground.rest()

    time.sleep(3)

    assert before == ground.everything()
    assert [operator.is_alive() for operator in ground.operators] == [True, True]


def works(log: Path) -> bool:
    """Whether the operator with that log has begun its work."""
    return log.exists() and "begins to work on" in log.read_text()


@pytest.mark.fault("B04")
def test_one_of_two_works_and_the_other_takes_over(make_field: Callable[[], Field], tmp_path: Path) -> None:
    ground, logs = make_field(), [tmp_path / "first", tmp_path / "second"]

    def holder() -> str:
        lease = ground.api.get_lease(ground.namespace, "operators")
        return str(lease["spec"]["holderIdentity"]) if lease else ""

    first = ground.start(holder="first", log=logs[0])
    until(holder, "first")
    second = ground.start(holder="second", log=logs[1])
    until(lambda: logs[1].exists() and "second waits for the lease" in logs[1].read_text())
    ground.apply()
    until(ground.is_complete)
    assert [works(log) for log in logs] == [True, False]
    assert [first.is_alive(), second.is_alive()] == [True, True]

    first.kill()
    ground.report(440)

    until(ground.replicas, 4)
    assert holder() == "second"
    assert works(logs[1])


@pytest.mark.fault("B12")
def test_the_api_server_goes_and_comes_back(ground: Field, apiserver: Any) -> None:
    ground.apply()
    until(ground.is_complete)
    apiserver.stop_serving()
    time.sleep(3)
    apiserver.serve_again()

    ground.report(440)

    until(ground.replicas, 4)


def comparable(objects: list[Any]) -> tuple[list[str], Any]:
    """The objects without what differs between runs: times, uids, keys."""
    kept = copy.deepcopy([o for o in objects if o is not None])
    for each in kept:
        place = each["metadata"].pop("namespace")
        each["metadata"] = {k: each["metadata"][k] for k in ("name", "labels", "annotations") if k in each["metadata"]}
        if each["kind"] == "Secret":
            each["data"] = sorted(each["data"])
        each.update(json.loads(json.dumps(each).replace(place, "NAMESPACE")))
    text = json.dumps([{k: v for k, v in each.items() if k != "metadata"} for each in kept], default=str)
    return [each["metadata"]["name"] for each in kept], _without_times(json.loads(text))


def _without_times(value: Any) -> Any:
    passing = ("Time", "Seconds", "uid")
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if not k.endswith(passing)}
    return [_without_times(v) for v in value] if isinstance(value, list) else value


@pytest.mark.fault("B01", "B26")
@pytest.mark.long
def test_an_operator_that_is_killed_after_any_write(make_field: Callable[[], Field]) -> None:
    """One job per write of an undisturbed run: its operator is killed right after that write and another takes over."""
    whole = make_field()
    whole.start()
    live(whole)
    expected = comparable(whole.rest())
    whole.stop()
    for writes in count(1):
        ground = make_field()
        mortal = ground.start(writes)
        _take_over(ground, mortal)
        live(ground)
        assert comparable(ground.rest()) == expected, f"killed after write {writes}"
        died = mortal.exitcode is not None
        ground.stop()
        if not died:
            assert writes > 15
            return


def _take_over(ground: Field, mortal: Any) -> None:
    def watch() -> None:
        mortal.join()
        if mortal.exitcode == -9:
            ground.start()

    threading.Thread(target=watch, daemon=True).start()
