"""The paper's tables, from the plan and the simulator."""

from pathlib import Path

import pytest
from batchgrowth.manifest.reading import load_manifest
from batchgrowth_trainer.paper.experiments import made
from batchgrowth_trainer.paper.published import SCHEDULES

EXAMPLES = Path(__file__).parents[3] / "examples" / "table1"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_the_schedules_are_those_of_the_examples(schedule: object) -> None:
    assert schedule.job() == load_manifest(EXAMPLES / f"{schedule.maximum}.yaml")  # type: ignore[attr-defined]


def test_table1_has_the_updates_and_workers_of_the_paper() -> None:
    (table,) = made("table1")

    assert [row[2] for row in table.rows] == [row[1] for row in table.rows]
    assert [row[7] for row in table.rows] == [row[6] for row in table.rows]
    assert table.csv().splitlines()[1] == "5.1k (*2),14960,14960,69.87,69.4,-0.7%,40,40"


def test_table2_is_within_a_percent_of_the_paper() -> None:
    (table,) = made("table2")

    assert len(table.rows) == 15
    assert [row[3] for row in table.rows] == pytest.approx([row[2] for row in table.rows], rel=0.01)
    assert table.rows[1] == ("5.1k (*2)", "moderate", 45.1, 45.1, "+0.0%", 28.0, 20.1)
