"""The workers that add differently than their job, as its trainer reports them."""

from batchgrowth_operator.decide.situation import Mode, Situation


def differing(s: Situation) -> str:
    """A sentence about them, with their nodes, and one about what happens to them; empty if there are none."""
    if s.mode is not Mode.ACTIVE or s.report is None or not s.report.differing:
        return ""
    nodes = {pod["metadata"]["name"]: (pod.get("spec") or {}).get("nodeName") for pod in s.seen.pods}
    each = [f"{name}{_on(nodes.get(name))} ({why})" for name, why in sorted(s.report.differing.items())]
    who = f"Adding differently than the job: {', '.join(each)}."
    if s.spec.workers.same_arithmetic == "Required":
        return f"{who} spec.workers.sameArithmetic: Required refuses it."
    return f"{who} The weights may end with other last bits."


def _on(node: str | None) -> str:
    return f" on node {node}" if node else ""
