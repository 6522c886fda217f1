"""Each warning has the words of a remark; tests/apiserver/test_admission_warnings.py evaluates the warnings."""

import re

import pytest
from batchgrowth.admission_warnings import AdmissionWarning, admission_variables, admission_warnings
from remarks import CASES, idle_jobs, read, remarked

JOBS = [*(read(**given) for _, given, _, _ in CASES), *idle_jobs().values()]
REMARKS = {text for job in JOBS for text in remarked(job)}


@pytest.mark.fault("N15")
@pytest.mark.parametrize("warning", admission_warnings(), ids=lambda warning: warning.field)
def test_a_warning_has_the_words_of_a_remark(warning: AdmissionWarning) -> None:
    words = re.split(r"\{[^{}]*\}", f"spec.{warning.field}: {warning.given}; {warning.remedy}")
    assert any(re.fullmatch(".+".join(map(re.escape, words)), text) for text in REMARKS)
    texts = re.findall("'([^']*)'", warning.message)
    assert [text for text in words if text] == [text for text in texts if text in words]


def test_an_expression_is_about_the_object_of_a_policy() -> None:
    expressions = [each for warning in admission_warnings() for each in (warning.expression, warning.message)]
    for cel in (*expressions, *admission_variables().values()):
        outside = re.sub("'[^']*'", "", cel)
        assert not re.search(r"(?<!object\.)\bspec\.", outside)
        assert set(re.findall(r"variables\.(\w+)", outside)) <= set(admission_variables())
