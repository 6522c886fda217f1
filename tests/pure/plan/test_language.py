"""`batchgrowth check` answers the corpus of tests/language.py as a real API server does."""

import pytest
from language import accepted, accepts, language

FEWEST = 2000


@pytest.mark.no_cover  # which takes twice as long, and finds no line that other tests do not reach
@pytest.mark.fault("N06")
def test_check_answers_as_the_api_server() -> None:
    """`python tests/language.py` writes the file, and tests/apiserver/test_language.py asks an API server."""
    answers = {name for name, manifest in language().items() if accepts(manifest)}
    assert (answers - accepted(), accepted() - answers) == (set(), set())
    assert len(language()) >= FEWEST
