"""When the metrics are measured."""

from pathlib import Path

import pytest
from batchgrowth import Position, load_manifest, make_plan
from batchgrowth.plan import evaluation_due

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


@pytest.mark.parametrize(
    ("position", "evaluated", "due"),
    [
        (Position(0, 0), 0, False),
        (Position(45, 1), 0, False),
        (Position(135, 3), 0, True),
        (Position(136, 3, 32), 0, False),
        (Position(135, 3), 3, False),
        (Position(458, 30), 27, True),
        (Position(458, 30), 30, False),
    ],
)
def test_evaluation_due(position: Position, evaluated: int, due: bool) -> None:
    """At the end of every third epoch, and at the end of the last, once."""
    spec = load_manifest(
        DIGITS, ["evaluation.everyEpochs=4" if position.epoch == 30 else "evaluation.everyEpochs=3"]
    ).spec
    assert due == evaluation_due(spec, make_plan(spec), position, evaluated)
