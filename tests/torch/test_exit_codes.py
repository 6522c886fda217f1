"""docs/exit-codes.md agrees with the tree of errors."""

import re
from pathlib import Path

import pytest
from batchgrowth import cli, errors
from batchgrowth.errors import SpecError
from batchgrowth_trainer import __main__
from batchgrowth_trainer.__main__ import in_a_pod

PAGE = (Path(__file__).parents[2] / "docs" / "exit-codes.md").read_text()
EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = re.findall(r"^\| (\d+) \| ?`?(\w*)`? \| (.+?) \| (.+?) \|$", PAGE, flags=re.MULTILINE)


def test_every_error_has_its_row_with_its_code() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert {(str(kind.exit_code), kind.__name__) for kind in kinds} == {(code, name) for code, name, *_ in ROWS if name}
    assert len(kinds) + 1 == len(ROWS)


def test_every_row_says_when_and_what_to_do() -> None:
    assert ROWS[0][0] == "0"
    assert sorted(ROWS, key=lambda row: int(row[0])) == ROWS
    assert all(len(when) > 20 and what for _, _, when, what in ROWS)


@pytest.mark.fault("O27")
@pytest.mark.parametrize(
    ("text", "in_the_log"),
    [
        (
            "it is in /checkpoints, and --resume continues from it",
            "it is in /checkpoints, and a restart continues from it",
        ),
        ("end this run and --resume it, which trains on", "end this run and restart it, which trains on"),
        ("out of service, then --resume; the newest", "out of service, then restart it; the newest"),
    ],
)
def test_a_pod_is_not_told_of_an_option(text: str, in_the_log: str) -> None:
    """Its trainer always resumes, and Kubernetes gives the options."""
    assert in_the_log == in_a_pod(text)


@pytest.mark.parametrize("words", [["run", "job.yaml", "--output-dir", ""], ["paper", "table1", "--output", ""]])
def test_an_empty_folder_is_not_the_current_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    """As of `--output-dir "$OUT"` if OUT is not set."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text((EXAMPLES / "digits.yaml").read_text())
    with pytest.raises(SystemExit) as ended:
        cli.main(words)

    assert ended.value.code == SpecError.exit_code
    assert f"Invalid value for '{words[-2]}': '' is empty" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["job.yaml"]


@pytest.mark.parametrize(("given", "code"), [(None, 0), (0, 0), (3, 3), ("what is wrong", 1)])
def test_a_text_to_exit_with_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: object, code: int
) -> None:
    def app() -> None:
        raise SystemExit(given)

    monkeypatch.setattr(__main__, "app", app)
    assert __main__._exit_code() == code
    assert ("what is wrong" in capsys.readouterr().err) == (given == "what is wrong")
