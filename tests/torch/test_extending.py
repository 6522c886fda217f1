"""The code of docs/extending.md does what the page says: a block is run as it stands there."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from batchgrowth.choices import optimizers
from batchgrowth.position import Position
from batchgrowth_trainer.record.history import EvaluationRow

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def defined_by(beginning: str) -> SimpleNamespace:
    """What the page's block defines that begins with these words."""
    [block] = [block for block in BLOCKS if block.startswith(f'"""{beginning}')]
    defined: dict[str, Any] = {"__name__": "docs.extending"}
    exec(compile(block, str(PAGE), "exec"), defined)
    return SimpleNamespace(**defined)


def test_a_growth_policy() -> None:
    page = defined_by("SquareRoot: ")
    rule = page.ENTRY.implementation(32, page.SquareRootBlock(every_epochs=2), None)

    assert [rule.wanted(Position(0, epoch, 0)) for epoch in (0, 1, 2, 6)] == [32, 32, 46, 64]
    assert rule.until(Position(0, 0, 0)).epoch == 2


def test_a_measured_growth_policy() -> None:
    rule = defined_by("LossSquare: ").ENTRY.implementation(None)
    look: Any = SimpleNamespace(start=SimpleNamespace(loss=2.0), now=SimpleNamespace(loss=0.5), initial=32)

    assert rule.value(look) == 4.0
    assert rule.wanted(look, 4.0) == 512.0


def test_a_learning_rate_rule() -> None:
    entry = defined_by("LinearToEight: ").ENTRY

    assert [entry.implementation(1, 32, used, used) for used in (32, 64, 512)] == [1, 2, 8]


def test_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = defined_by("Lion: ")
    monkeypatch.setattr(optimizers, "LionBlock", settings.LionBlock, raising=False)
    lion = defined_by("Lion.").lion_stepper(settings.LionBlock(beta1="0.5", beta2="0.75"))
    vector, state = torch.zeros(2), {"mean": torch.tensor([0.0, 4.0])}
    lion.step(vector, torch.tensor([2.0, -2.0]), state, 0.5, 0)

    assert lion.state == ("mean",)
    assert vector.tolist() == [-0.5, -0.5]
    assert state["mean"].tolist() == [0.5, 2.5]
    with pytest.raises(ValueError, match="beta1"):
        settings.LionBlock(beta1="1")


def test_a_sink(tmp_path: Path) -> None:
    page = defined_by("Losses as JSON lines")
    sink = page.JsonLines(tmp_path / "losses.jsonl")
    sink.handle(page.Started("digits", None, Position()))
    sink.handle(EvaluationRow(46, 1.0, 0.5, 0.25, {"accuracy": 0.75}))
    sink.handle(page.Stopped())
    [line] = (tmp_path / "losses.jsonl").read_text().splitlines()

    assert json.loads(line) == {"update": 46, "evaluation": {"loss": 0.25, "accuracy": 0.75}}
