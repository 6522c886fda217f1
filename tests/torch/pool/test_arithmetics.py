"""Workers that add differently than their job: reported, used last, or refused."""

from dataclasses import replace
from typing import Any

import pytest
from batchgrowth.errors import ClusterError, WorkloadError
from batchgrowth_trainer.pool.arithmetics import MOST_RECORDS, SHARDS, STEPS, Arithmetics
from batchgrowth_trainer.pool.worker_pool import Admission
from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.worker.messages import Prepared


def prepared(name: str, instructions: str = "AVX512") -> Prepared:
    arithmetic = Arithmetic(f"digest of {instructions}", "CPU", "EPYC", instructions, "torch 2", "1 thread")
    return Prepared(name, f"host-{name}", "", ("127.0.0.1", 1), arithmetic)


class Published:
    """What was published last, and all lines."""

    def __init__(self) -> None:
        self.workers: Any = {}
        self.lines: list[str] = []

    def __call__(self, workers: Any, line: str) -> None:
        self.workers = dict(workers)
        self.lines += [line] * bool(line)


def test_one_that_differs_is_reported_until_it_leaves_and_stays_in_the_summary() -> None:
    published = Published()
    arithmetics = Arithmetics(publish=published)
    admission = Admission(arithmetics)
    for name, instructions in (("0", "AVX512"), ("1", "AVX2"), ("2", "AVX512")):
        admission.add(name, prepared(name, instructions))
    assert list(admission.ready) == ["0", "1", "2"]
    assert published.workers == {"1": "AVX2 rather than AVX512"}
    assert published.lines == [
        "worker 1 on host-1 adds differently than this job: AVX2 rather than AVX512; the weights may end with other "
        "last bits; workers.sameArithmetic: Required would refuse it"
    ]
    admission.remove("1")
    assert published.workers == {}
    stored = arithmetics.to_json()
    assert (stored["shards"]["instructions"], [one["worker"] for one in stored["differing"]]) == ("AVX512", ["1"])


def test_the_job_of_a_checkpoint_keeps_its_arithmetic() -> None:
    first = Arithmetics()
    first.compare("a", prepared("0", "AVX2"))
    published = Published()
    resumed = Arithmetics(publish=published, known=first.to_json())
    resumed.compare("b", prepared("1", "AVX512"))
    assert published.workers == {"1": "AVX512 rather than AVX2"}
    assert not Arithmetics(known=None).differs("b"), "a checkpoint of an earlier version has none"


def test_required_holds_back_what_differs() -> None:
    admission = Admission(Arithmetics(required=True))
    admission.add("a", prepared("0"))
    admission.add("b", prepared("1", "AVX2"))
    admission.admit_held(5)
    assert list(admission.ready) == ["a"]
    assert "b" in admission
    admission.remove("a")
    admission.admit_held(5)
    assert list(admission.ready) == [], "what was trained has the arithmetic of the first"
    assert "workers.sameArithmetic: Required refuses it" in admission.arithmetics.refusal("b")
    admission.add("c", prepared("2"))
    assert list(admission.ready) == ["c"]


def test_before_the_first_update_another_worker_can_be_the_first() -> None:
    published = Published()
    admission = Admission(Arithmetics(required=True, publish=published))
    for name, instructions in (("0", "AVX512"), ("1", "AVX2"), ("2", "DEFAULT"), ("3", "AVX2")):
        admission.add(name, prepared(name, instructions))
    assert list(admission.ready) == ["0"]
    admission.remove("0")
    admission.admit_held(0)
    assert list(admission.ready) == ["1", "3"]
    assert published.workers == {"2": "DEFAULT rather than AVX2"}


def test_workers_of_another_scheduler_are_compared_again() -> None:
    published = Published()
    arithmetics = Arithmetics(publish=published)
    for address, instructions in (("a", "AVX512"), ("b", "AVX2")):
        arithmetics.compare(address, prepared(address, instructions))
    Admission(arithmetics)
    assert published.workers == {}
    arithmetics.compare("c", prepared("b", "AVX2"))
    assert published.workers == {"b": "AVX2 rather than AVX512"}


def test_the_trainer_itself_is_compared_with_what_computed_the_same_before() -> None:
    """A server takes the steps alone, so it may add differently than the workers that compute shards."""
    mine, other = prepared("0").arithmetic, prepared("0", "AVX2").arithmetic
    first = Arithmetics(required=True)
    first.compare_own(STEPS, mine)
    first.compare("a", prepared("0", "AVX2"))
    assert not first.differs("a")
    published = Published()
    Arithmetics(publish=published, known=first.to_json()).compare_own(STEPS, other)
    assert published.workers == {"trainer": "AVX2 rather than AVX512"}
    resumed = Arithmetics(required=True, known=first.to_json())
    resumed.compare_own(SHARDS, other)
    with pytest.raises(ClusterError, match=r"the trainer on .*AVX512 rather than AVX2.*sameArithmetic: Preferred"):
        resumed.compare_own(SHARDS, mine)


def test_a_summary_does_not_grow_with_every_pod_that_comes_and_goes() -> None:
    arithmetics = Arithmetics()
    for number in range(MOST_RECORDS + 9):
        arithmetics.compare(str(number), prepared(str(number), "AVX2" if number else "AVX512"))
    assert len(arithmetics.to_json()["differing"]) == MOST_RECORDS


@pytest.mark.fault("T08")
def test_a_worker_with_other_code_is_held_back_while_another_has_the_jobs() -> None:
    """As when a file is edited while a job trains, and a worker joins it late."""
    published = Published()
    admission = Admission(Arithmetics(publish=published))
    code = {"helper.py": "a", "net.py": "b"}
    admission.add("a", replace(prepared("0"), code=code))
    admission.add("b", replace(prepared("1"), code={**code, "net.py": "c"}))
    admission.add("c", replace(prepared("2"), code=code))
    assert list(admission.ready) == ["a", "c"]
    assert published.workers == {"1": "it has another net.py"}
    assert published.lines == [
        "worker 1 on host-1 is held back: it has another net.py than the workers before it. Undo the change, or end "
        "this run and --resume it, which trains on with the new code."
    ]
    assert admission.arithmetics.refusal("b") == "worker 1 is held back: it has another net.py"
    for address in ("a", "c"):
        admission.remove(address)
        admission.admit_held(5)
    assert list(admission.ready) == ["b"]
    assert published.lines[1:] == [
        "every worker with the job's code is gone; worker 1 on host-1 goes on with its own: it has another net.py"
    ]


def edited(worker: Prepared) -> Prepared:
    """The worker with other code, which computes the first shard otherwise."""
    arithmetic = replace(worker.arithmetic, digest=f"{worker.arithmetic.digest}, edited")
    return replace(worker, code={"net.py": "edited"}, arithmetic=arithmetic)


@pytest.mark.fault("T08")
@pytest.mark.parametrize("required", [False, True])
def test_code_that_becomes_the_jobs_brings_its_arithmetic(required: bool) -> None:
    """The first shard of other code has another digest, which says nothing about its workers, even of one machine."""
    published = Published()
    admission = Admission(Arithmetics(required=required, publish=published))
    admission.add("a", replace(prepared("0"), host="node"))
    for address, name in (("b", "1"), ("c", "2")):
        admission.add(address, replace(edited(prepared(name)), host="node"))
    admission.remove("a")
    admission.admit_held(5)
    assert list(admission.ready) == ["b", "c"]
    assert published.workers == {}


@pytest.mark.fault("T08")
def test_another_worker_that_is_refused_does_not_keep_the_jobs_code() -> None:
    """It may not compute, so the job would wait for ever."""
    admission = Admission(Arithmetics(required=True))
    admission.add("a", prepared("0"))
    admission.add("b", prepared("1", "AVX2"))
    admission.add("c", edited(prepared("2", "AVX2")))
    admission.remove("a")
    admission.admit_held(5)
    assert list(admission.ready) == [], "an AVX2 is refused with any code"
    admission.add("d", edited(prepared("3")))
    admission.admit_held(5)
    assert list(admission.ready) == ["d"]
    assert admission.arithmetics.refusal("b") == "worker 1 is held back: it has another net.py"
    assert admission.arithmetics.refusal("c").startswith("worker 2 adds differently than this job: AVX2 rather than")


@pytest.mark.fault("T01")
def test_two_processes_of_one_machine_that_differ_have_code_that_depends_on_the_process() -> None:
    """Before the first update, and also if the second one joins late; those of other machines are only reported."""
    one, other = (replace(prepared(name), host="node") for name in "ab")
    other = replace(other, arithmetic=replace(other.arithmetic, digest="another"))
    arithmetics = Arithmetics()
    arithmetics.compare("a", one)
    arithmetics.compare("b", replace(one, name="b"))
    arithmetics.compare("c", replace(other, host="another node"))
    assert ["c"] == [address for address in "abc" if arithmetics.differs(address)]
    with pytest.raises(WorkloadError, match=r"otherwise in another process: workers a and b on node .*an id\(\)"):
        arithmetics.compare("d", other)


def test_a_worker_is_not_compared_with_the_process_of_a_checkpoint() -> None:
    """The code may have been edited in between, and what was trained stays."""
    first = Arithmetics()
    first.compare("a", replace(prepared("0"), host="node"))
    resumed = Arithmetics(known=first.to_json())
    edited = replace(prepared("1"), host="node")
    edited = replace(edited, arithmetic=replace(edited.arithmetic, digest="another"))
    resumed.compare("b", edited)
    assert resumed.differs("b")
