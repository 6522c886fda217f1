"""JSON Schemas of the Kubernetes types that values use, closed so that they refuse typos."""

from __future__ import annotations

from typing import Any

from batchgrowth.schema import structural_schema
from batchgrowth.spec.all_pods import Pods

Schema = dict[str, Any]


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "additionalProperties": False, **needed, "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
SECONDS: Schema = {"type": "integer", "minimum": 0}
WEIGHT: Schema = {"type": "integer", "minimum": 1, "maximum": 100}
NAMESPACE: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
QUANTITIES: Schema = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number"], "pattern": "^[0-9]+(\\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$"},
}

_REQUIREMENTS, _SELECTOR = _ref("requirements"), _ref("labelSelector")
_PODS = _object(
    ("topologyKey",),
    topologyKey=TEXT,
    labelSelector=_SELECTOR,
    namespaces=_list(TEXT),
    namespaceSelector=_SELECTOR,
    matchLabelKeys=_list(TEXT),
    mismatchLabelKeys=_list(TEXT),
)


def _pod_affinity() -> Schema:
    preferred = _object(("weight", "podAffinityTerm"), weight=WEIGHT, podAffinityTerm=_ref("podAffinityTerm"))
    return _object(
        requiredDuringSchedulingIgnoredDuringExecution=_list(_ref("podAffinityTerm")),
        preferredDuringSchedulingIgnoredDuringExecution=_list(preferred),
    )


def _node_affinity() -> Schema:
    required = _object(("nodeSelectorTerms",), nodeSelectorTerms=_list(_ref("nodeSelectorTerm")))
    preferred = _object(("weight", "preference"), weight=WEIGHT, preference=_ref("nodeSelectorTerm"))
    return _object(
        requiredDuringSchedulingIgnoredDuringExecution=required,
        preferredDuringSchedulingIgnoredDuringExecution=_list(preferred),
    )


def _as_in_a_job(node: Schema) -> Schema:
    """Return a part of the CRD's schema, closed to unknown fields where the API server refuses them."""
    kept = {name: value for name, value in node.items() if not name.startswith("x-kubernetes-") and name != "default"}
    for name in ("items", "additionalProperties"):
        if name in kept:
            kept[name] = _as_in_a_job(kept[name])
    if "properties" in kept:
        kept["properties"] = {name: _as_in_a_job(part) for name, part in kept["properties"].items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            kept["additionalProperties"] = False
    return kept


_ANY: Schema = {"type": "object"}
_NAME: Schema = {"type": "string", "minLength": 1}

DEFINITIONS: dict[str, Schema] = {
    "texts": TEXTS,
    "env": _list(_object(("name",), name=_NAME, value=TEXT, valueFrom=_ANY)),
    "mounts": _list(
        _object(
            ("name", "mountPath"),
            name=_NAME,
            mountPath=_NAME,
            subPath=TEXT,
            readOnly={"type": "boolean"},
        )
    ),
    "namedParts": _list({"type": "object", "required": ["name"], "properties": {"name": _NAME}}),
    "references": _list(_object(("name",), name={"type": "string", "minLength": 1})),
    "names": _list({"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253})
    | {"uniqueItems": True},
    "namespaces": _list(NAMESPACE) | {"uniqueItems": True},
    "resources": _object(requests=QUANTITIES, limits=QUANTITIES),
    "tolerations": _list(
        _object(
            key=TEXT,
            operator=_one_of("Exists", "Equal"),
            value=TEXT,
            effect=_one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
            tolerationSeconds=SECONDS,
        )
    ),
    "requirements": _list(_object(("key", "operator"), key=TEXT, operator=TEXT, values=_list(TEXT))),
    "labelSelector": _object(matchLabels=_ref("texts"), matchExpressions=_REQUIREMENTS),
    "nodeSelectorTerm": _object(matchExpressions=_REQUIREMENTS, matchFields=_REQUIREMENTS),
    "podAffinityTerm": _PODS,
    "affinity": _object(nodeAffinity=_node_affinity(), podAffinity=_pod_affinity(), podAntiAffinity=_pod_affinity()),
    "pods": _as_in_a_job(structural_schema(Pods)),
    "spread": _list(
        _object(
            ("maxSkew", "topologyKey", "whenUnsatisfiable"),
            maxSkew={"type": "integer", "minimum": 1},
            topologyKey=TEXT,
            whenUnsatisfiable=_one_of("DoNotSchedule", "ScheduleAnyway"),
            labelSelector=_SELECTOR,
            minDomains={"type": "integer", "minimum": 1},
            matchLabelKeys=_list(TEXT),
            nodeAffinityPolicy=_one_of("Honor", "Ignore"),
            nodeTaintsPolicy=_one_of("Honor", "Ignore"),
        )
    ),
}
