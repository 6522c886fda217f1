"""A user's pod template merged into the operator's: which parts merge and which are replaced."""

from typing import Any

import pytest
from batchgrowth.spec.pods import merged


@pytest.mark.parametrize(
    ("base", "overlay", "expected"),
    [
        ({"a": 1, "b": {"c": 1}}, {"b": {"d": 2}}, {"a": 1, "b": {"c": 1, "d": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": 1, "b": {"c": 1, "d": 2}}, {"a": None, "b": {"c": None}, "e": None}, {"b": {"d": 2}}),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
        ),
        (
            {"volumeMounts": [{"mountPath": "/tmp", "name": "tmp"}]},
            {"volumeMounts": [{"mountPath": "/data", "name": "data"}]},
            {"volumeMounts": [{"mountPath": "/tmp", "name": "tmp"}, {"mountPath": "/data", "name": "data"}]},
        ),
        (
            {"livenessProbe": {"httpGet": {"path": "/health", "port": "health"}, "periodSeconds": 20}},
            {"livenessProbe": {"failureThreshold": 90}},
            {
                "livenessProbe": {
                    "httpGet": {"path": "/health", "port": "health"},
                    "periodSeconds": 20,
                    "failureThreshold": 90,
                }
            },
        ),
        (
            {"livenessProbe": {"httpGet": {"path": "/health", "port": "health"}, "periodSeconds": 20}},
            {"livenessProbe": {"httpGet": {"path": "/other"}}},
            {"livenessProbe": {"httpGet": {"path": "/other", "port": "health"}, "periodSeconds": 20}},
        ),
        (
            {"livenessProbe": {"httpGet": {"path": "/health", "port": "health"}, "periodSeconds": 20}},
            {"livenessProbe": {"exec": {"command": ["true"]}}},
            {"livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 20}},
        ),
    ],
)
def test_merging(base: Any, overlay: Any, expected: Any) -> None:
    assert merged(base, overlay) == expected
