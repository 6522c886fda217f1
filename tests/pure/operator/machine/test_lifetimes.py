"""The machine finds nothing in the operator, and it finds every planted bug."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from lifetimes import ByDefault, Lifetimes, WithClaim, machine_of
from mutants import MUTANTS

SETTINGS = settings(
    database=None, deadline=None, derandomize=True, print_blob=False, suppress_health_check=list(HealthCheck)
)


@pytest.mark.smoke
@pytest.mark.fault("B04", "B08", "B09", "B14")
@pytest.mark.parametrize("machine", [Lifetimes, WithClaim, pytest.param(ByDefault, marks=pytest.mark.long)])
def test_a_job_is_safe_and_comes_to_rest(machine: type[Lifetimes]) -> None:
    run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=15, stateful_step_count=25))


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_many_jobs_are_safe_and_come_to_rest() -> None:
    many = settings(SETTINGS, derandomize=False, max_examples=300, stateful_step_count=50, print_blob=True)
    run_state_machine_as_test(Lifetimes, settings=many)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the symptom that it has, and not because the machine breaks."""
    MUTANTS[name].plant(monkeypatch)
    quick = settings(
        SETTINGS, max_examples=150, stateful_step_count=25, phases=[Phase.generate], report_multiple_bugs=False
    )

    with pytest.raises(AssertionError, match=MUTANTS[name].symptom):
        run_state_machine_as_test(machine_of(MUTANTS[name].rules), settings=quick)
