"""Drift: whether a found object has every wanted field."""

from typing import Any

import pytest
from batchgrowth import names
from batchgrowth_operator.children import drift
from batchgrowth_operator.children.drift import covers, digest, matches_manifest
from hypothesis import given
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("abc", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ({"a": 1, "b": 2}, {"a": 1}),
        ({"a": {"b": [1, 2], "c": 3}}, {"a": {"b": [1, 2]}}),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "1000m"}}),
        ({"requests": {"memory": "1Gi"}}, {"requests": {"memory": "1024Mi"}}),
        ({"limits": {"memory": "1500"}}, {"limits": {"memory": "1.5k"}}),
        ({"emptyDir": {"sizeLimit": "1k"}}, {"emptyDir": {"sizeLimit": "1e3"}}),
        ({"limits": {"cpu": "2"}}, {"limits": {"cpu": 2}}),
        ({"limits": {"cpu": "250m"}}, {"limits": {"cpu": "250000u"}}),
        ({"limits": {"cpu": "3m"}}, {"limits": {"cpu": "3000000n"}}),
        ({"limits": {"cpu": "1500m"}}, {"limits": {"cpu": "+1.5"}}),
        ({"items": [{"field": {"divisor": "1k"}}]}, {"items": [{"field": {"divisor": "1000"}}]}),
        ({}, {"a": None, "b": False, "c": "", "d": 0, "e": {}, "f": []}),
        ({"a": {}, "b": []}, {"a": None, "b": None}),
        ({"env": [{"name": "B"}, {"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "1"}]}),
        ({"ports": [{"port": 1, "nodePort": 3}]}, {"ports": [{"port": 1}]}),
        ({"env": [{"name": "A"}]}, {"env": [{"name": "A", "value": ""}]}),
    ],
)
def test_covered(found: Any, wanted: Any) -> None:
    assert covers(found, wanted)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ({"a": 1}, {"a": 2}),
        ({}, {"a": 1}),
        ({"a": [1, 2]}, {"a": [1]}),
        ({"a": "x"}, {"a": {"b": 1}}),
        ({"a": {"b": 1}}, {"a": [1]}),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "2"}}),
        ({"limits": {"cpu": "1x"}}, {"limits": {"cpu": "1"}}),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "-1"}}),
        ({"limits": {"cpu": True}}, {"limits": {"cpu": 1.5}}),
        ({"limits": {"cpu": "1e999999999"}}, {"limits": {"cpu": "2e999999999"}}),  # whose values would take hours
        ({"env": [{"name": "A", "value": "1.0"}]}, {"env": [{"name": "A", "value": "1"}]}),
        ({"command": ["train", "1k"]}, {"command": ["train", "1000"]}),
        ({"env": [{"name": "B"}]}, {"env": [{"name": "A"}]}),
        ({"env": [{"name": "A", "value": "2"}]}, {"env": [{"name": "A", "value": "1"}]}),
    ],
)
def test_not_covered(found: Any, wanted: Any) -> None:
    assert not covers(found, wanted)


@given(JSON)
def test_everything_covers_itself(value: Any) -> None:
    assert covers(value, value)


@given(JSON, JSON)
def test_digests_of_different_values_differ(one: Any, other: Any) -> None:
    import json

    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert same == (digest(one) == digest(other))


def test_each_version_of_an_object_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object without a version, which no API server has stored, is compared each time."""
    compared: list[Any] = []

    def counted(found: Any, wanted: Any) -> bool:
        compared.append(found)
        return bool(found["spec"] == wanted["spec"])

    monkeypatch.setattr(drift, "covers", counted)
    annotations = {names.MANIFEST: "compared once"}
    wanted = {"metadata": {"annotations": annotations}, "spec": {"replicas": 2}}

    def found(replicas: int, **metadata: str) -> dict[str, Any]:
        return {"metadata": {"annotations": annotations, **metadata}, "spec": {"replicas": replicas}}

    for _ in range(3):
        assert matches_manifest(found(2, uid="a", resourceVersion="1"), wanted)
        assert not matches_manifest(found(3, uid="a", resourceVersion="2"), wanted)
        assert matches_manifest(found(2, uid="b", resourceVersion="2"), wanted)
    assert len(compared) == 3
    assert matches_manifest(found(2), wanted)
    assert not matches_manifest(found(3), wanted)
    assert len(compared) == 5

    requested = wanted | {"status": {"phase": "Created"}}
    matches_manifest(found(2, uid="a", resourceVersion="1"), requested)
    assert len(compared) == 6, "the annotation does not name all of a manifest"

    other = {"metadata": {"annotations": {names.MANIFEST: "other"}}, "spec": {"replicas": 2}}
    assert not matches_manifest(found(2, uid="a", resourceVersion="1"), other)
    assert len(compared) == 6
