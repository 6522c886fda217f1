"""The table of faults: every one is shown by a test or says why not, and every mark names one."""

from pathlib import Path

import pytest

from docs.faults import GROUPS, Proof, proofs, read_faults

TESTS = Path(__file__).parents[1]
NUMBERS = {"A": 34, "B": 29, "C": 27, "D": 19, "E": 8, "F": 8, "N": 15, "T": 18, "O": 30, "G": 12}
FEWEST_SHOWN = 95


def test_no_fault_is_left_out() -> None:
    rows = read_faults()
    every = [f"{group}{number:02}" for group in GROUPS for number in range(1, NUMBERS[group] + 1)]
    assert every == [*rows]


def test_a_fault_has_a_test_or_a_reason_and_not_both() -> None:
    shown = proofs(TESTS)
    assert [row.id for row in read_faults().values() if (row.id in shown) == (row.open is not None)] == []
    assert len(shown) >= FEWEST_SHOWN


def test_every_mark_names_a_fault() -> None:
    assert proofs(TESTS).keys() - read_faults().keys() == set()


def test_texts_are_sentences_of_a_table() -> None:
    for row in read_faults().values():
        for text in filter(None, (row.happens, row.does, row.open)):
            assert "|" not in text
            assert "\n" not in text
            assert text.endswith("."), text


def test_marks_are_read_without_running_a_test(tmp_path: Path) -> None:
    (tmp_path / "pure").mkdir()
    (tmp_path / "pure" / "test_some.py").write_text(
        "import pytest\nimport nothing_of_this_name\n\n"
        "@pytest.mark.long\n@pytest.mark.fault('B18', \"C02\")\ndef test_one(): ...\n\n"
        "def test_other(): ...\n\n"
        "@pytest.mark.fault('C02')\nasync def test_third(): ...\n"
    )
    one, third = Proof("pure/test_some.py", "test_one"), Proof("pure/test_some.py", "test_third")

    assert {"B18": [one], "C02": [one, third]} == proofs(tmp_path)


def test_a_mark_may_be_that_of_all_tests_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n\npytestmark = [pytest.mark.long, pytest.mark.fault('B18')]\n\n"
        "def helper(): ...\n\ndef test_one(): ...\n\n@pytest.mark.fault('C02')\ndef test_other(): ...\n"
    )
    one, other = Proof("test_some.py", "test_one"), Proof("test_some.py", "test_other")

    assert {"B18": [one, other], "C02": [other]} == proofs(tmp_path)


def test_a_mark_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("@pytest.mark.fault(IDS[0])\ndef test_one(): ...\n")

    with pytest.raises(ValueError, match=r"test_some\.py: test_one: IDS\[0\]; give the fault's id in quotes"):
        proofs(tmp_path)


def test_a_manifest_of_the_corpus_may_have_a_fault(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "expected.yaml").write_text("a: {names: spec.a, fault: A01}\nb: {names: spec.b}\n")

    assert {"A01": [Proof("corpus/bad/a.yaml", "a")]} == proofs(tmp_path)
