"""Which member's state a run ends with."""

from typing import Any, cast

from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.drivers.run import Run
from batchgrowth_trainer.drivers.states import States
from batchgrowth_trainer.worker.messages import Outcome


class Asked:
    """Calls without an answer, with the workers that were asked; it stands for a crew, its calls, and a run."""

    def __init__(self) -> None:
        self.calls, self.run_id, self.asked = self, "", list[str]()
        self.reported, self.position, self.story = 12, None, self
        self.evaluated = 1

    def ask(self, *_: Any, workers: list[str]) -> dict[str, Any]:
        self.asked += workers
        return {}

    def evaluation_due(self, _position: Any) -> bool:
        return False


def test_it_ends_with_a_member_that_has_judged_the_last_evaluation() -> None:
    """Those that lost a peer while they evaluated have the update alone; if there is no other, they evaluate again."""
    crew = Asked()
    states = States(cast(Run, crew), cast(Crew, crew), lambda _: None)
    assert states.is_judged, "without a member there is nothing to judge"
    states.take({"a": Outcome(12, is_judged=False), "b": Outcome(11)})
    assert not states.is_judged
    states.take({"b": Outcome(12)})
    assert states.is_judged
    states.trained()
    assert ["b"] == crew.asked
    states.take({"a": Outcome(13, is_judged=False)})
    assert not states.is_judged
    states.take({"a": Outcome(13)})
    assert states.is_judged
