"""The live display in a cell of a notebook."""

from batchgrowth.plan import make_plan
from batchgrowth.position import Position
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow
from batchgrowth_trainer.sinks.display import MOST_NOTES, NotebookDisplay, Picture
from batchgrowth_trainer.sinks.events import Note, Started, Stopped, Waiting


class Notebook:
    """A cell with its outputs, and a clock."""

    def __init__(self, job: BatchGrowthJob) -> None:
        self.shown: list[Picture] = []
        self.now = 0.0
        self.cell = NotebookDisplay(clock=lambda: self.now, show=self.shown.append)
        self.cell.handle(Started("small", make_plan(job.spec), Position()))

    def update(self, number: int, at: float) -> None:
        self.now = at
        self.cell.handle(
            HistoryRow(
                update=number, epoch=number / 20, stage=0, batch_size=8, learning_rate=0.05, loss=1.5, workers=2,
                compute_seconds=0.1, exchange_seconds=0.0, wait_seconds=0.0, seconds=at,
            )
        )  # fmt: skip

    @property
    def text(self) -> str:
        return repr(self.shown[-1])


def test_updates_are_drawn_four_times_a_second(small_job: object) -> None:
    """A thousand in a second do not flood the notebook, and the last one is shown at the end."""
    notebook = Notebook(small_job())
    before = len(notebook.shown)
    for number in range(1000):
        notebook.update(number % 30 + 1, at=number / 1000)
    assert len(notebook.shown) - before == 4
    notebook.update(31, at=1.0)
    notebook.cell.handle(Stopped())

    assert "update 31/" in notebook.text


def test_it_shows_the_numbers_and_the_newest_notes(small_job: object) -> None:
    notebook = Notebook(small_job())
    for number in range(MOST_NOTES + 1):
        notebook.cell.handle(Note(f"note {number} <b>"))
    notebook.cell.handle(EvaluationRow(3, 0.1, 0.5, 1.25, {"accuracy": 0.75}))
    notebook.update(3, at=1.0)
    notebook.cell.handle(Stopped())

    assert "batch 8  workers 2  learning rate 0.05  loss 1.5000  test loss 1.2500, accuracy 0.7500" in notebook.text
    assert "note 0" not in notebook.text
    assert f"note {MOST_NOTES} <b>" in notebook.text
    assert f"note {MOST_NOTES} &lt;b&gt;" in notebook.shown[-1]._repr_html_()


def test_a_wait_is_shown_until_it_ends(small_job: object) -> None:
    notebook = Notebook(small_job())
    notebook.cell.handle(Waiting("a worker; 0 registered"))
    notebook.cell.handle(Waiting("a worker; 1 registered"))
    assert "waiting for a worker; 1 registered" in notebook.text
    assert "0 registered" not in notebook.text
    notebook.update(1, at=1.0)

    assert "waiting" not in notebook.text
