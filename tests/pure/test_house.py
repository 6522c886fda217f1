"""The repository keeps its shape."""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("operator", "trainer", "plan", "tests")
PACKAGES = ("operator/batchgrowth_operator", "plan/batchgrowth", "trainer/batchgrowth_trainer")
MOST_ROOMS_OF_THE_TRAINER = 18


def tracked() -> list[Path]:
    """Every file that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_no_package_shadows_a_standard_module() -> None:
    """`operator/__init__.py` would take the place of the standard library's operator in every process started here."""
    stray = [*(ROOT / room / "__init__.py" for room in ROOMS), *(ROOT / "tests").glob("*/__init__.py")]

    assert [] == [path for path in stray if path.exists()]


def test_python_starts_at_the_root() -> None:
    """A process that is started at the root finds the standard library's modules."""
    code = "import operator, collections; print(operator.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout

    assert str(ROOT) not in where.replace(sys.prefix, "")


def test_the_lock_covers_what_the_project_needs() -> None:
    """Each named requirement is pinned, with digests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    named = [*project["project"]["dependencies"], *(r for extra in extras for r in extra)]
    named += project["dependency-groups"]["dev"]
    lock = (ROOT / "requirements.lock").read_text()

    for requirement in named:
        name = re.split(r"[><=~!\[; ]", requirement)[0].lower().replace("_", "-")
        assert re.search(rf"^{re.escape(name)}==\S+ .*\\$", lock, re.MULTILINE), name
    assert "--hash=sha256:" in lock


@pytest.mark.parametrize("word", ["/wor" + "k/", "/roo" + "t/", "pythonhosted" + ".org", "pypi" + ".org"])
def test_no_file_names_a_machine_or_a_registry(word: str) -> None:
    """What is committed runs anywhere."""
    binary = {".png", ".bin"}
    guilty = [path for path in tracked() if path.suffix not in binary and word in path.read_text(errors="replace")]

    assert [] == guilty


def test_files_are_short() -> None:
    """A file of more than 250 lines has a second idea in it."""
    code = [p for p in tracked() if p.suffix == ".py" and p.parts[len(ROOT.parts)] in ("operator", "trainer", "plan")]
    long = {str(p.relative_to(ROOT)): lines for p in code if (lines := len(p.read_text().splitlines())) > 250}

    assert {} == long


def test_every_folder_of_the_packages_says_what_belongs_there() -> None:
    """A docstring in its `__init__.py`."""
    code = [path for path in tracked() if path.suffix == ".py"]
    folders = {
        folder
        for path in code
        for folder in path.parents
        if any(ROOT / p in (folder, *folder.parents) for p in PACKAGES)
    }
    silent = [folder for folder in folders if not _docstring(folder / "__init__.py")]

    assert folders
    assert [] == silent


def test_the_trainer_shows_few_rooms() -> None:
    """Files and folders at its top level; what comes on top belongs into a folder."""
    top = ROOT / "trainer" / "batchgrowth_trainer"
    rooms = {path.relative_to(top).parts[0] for path in tracked() if top in path.parents} - {"__init__.py"}

    assert 0 < len(rooms) <= MOST_ROOMS_OF_THE_TRAINER, sorted(rooms)


def _docstring(path: Path) -> str | None:
    return ast.get_docstring(ast.parse(path.read_text())) if path.exists() else None


# --- words ------------------------------------------------------------------------------------------------------------

BANNED = {
    "anew": "again, or a verb with re-: restart, rebuild, reseed",
    "nought": "nothing, or zero",
    "meanwhile": "while, until or since something that the sentence names",
    "for want of": "without, or because there is no",
    "(who|whom|who?so)ever": "the process or the person",
    "(any|every|no|some)body('s)?": "the worker, the process or the user",
    "so long(?! as)": "a number with its unit",
    "so often": "a number with its unit",
    "so far (ahead|apart|away|before)": "a number with its unit",
    "so (few|many|much) \\w+(?! (as|that))": "a number, or N, with its unit",
    "(is|are|was|were) to (be|begin|come|do|end|get|give|go|have|make|start|stay|stop|take|wait)": "must, should, will",
    "for (it|there|they) (are|can|did|do|does|had|has|have|is|may|must|was|were|will|would)": "because",
    "(told|tells? of)": "reported, notified, configured; report, describe",
    "(let|lets|letting)( \\w+)? go": "release, stop, disconnect",
    "look(s|ed|ing)? after": "manage, repair",
    "(take|takes|taken|taking|took) note": "record, handle",
    "(saw|see|seeing|seen|sees) (\\w+ )?off": "release, disconnect",
    "(heard|hear|hears|hearing) of": "receive, learn of",
    "heed(s|ed)?": "respect, read",
    "(ere|hence|hither|lest|thence|thereof|wherein|whereof|whither)": "a plain word",
    "of (its|one's|their) own making": "that it creates",
    r"(?-i:Who) [a-z]+(?![^.?]*\?)": "the worker, the process or the user, except in a question",
}
"""Regular expression of whole words, in any case -> what to write instead."""
TEXT_SUFFIXES = {".json", ".md", ".tpl", ".txt", ".yaml"}
"""Suffixes of the files that are searched as a whole; a Python file is searched in what `texts_of` finds."""
SEARCHED = {
    "bench": ("bench",),
    "charts": ("charts", "crds"),
    "cluster": ("cluster",),
    "docs": ("docs", "examples", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "tests/README.md"),
    "operator": ("operator",),
    "plan": ("plan",),
    "trainer": ("trainer",),
}
"""Name of a part of the repository -> its folders and files."""


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each comment, docstring and string with a blank in it of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


def banned_in(text: str, line: int = 1) -> Iterator[tuple[int, str, str]]:
    """(line, what was found, what to write instead) for each banned word of a text that begins on `line`."""
    for pattern, instead in BANNED.items():
        words = pattern.replace(" ", r"\s+")
        for found in re.finditer(rf"(?<!\w)(?:{words})(?!\w)", text, re.IGNORECASE):
            yield line + text.count("\n", 0, found.start()), " ".join(found[0].split()), instead


def banned_in_file(path: Path) -> Iterator[tuple[int, str, str]]:
    """The same for a file, by its suffix."""
    source = path.read_text(encoding="utf-8")
    for line, text in texts_of(source) if path.suffix == ".py" else [(1, source)]:
        yield from banned_in(text, line)


@pytest.mark.parametrize("part", SEARCHED)
def test_words_read_once(part: str) -> None:
    """A sentence that is read twice costs more than it saves; CONTRIBUTING.md has the rule."""
    tops = [ROOT / name for name in SEARCHED[part]]
    paths = [p for p in tracked() if p.suffix in {".py", *TEXT_SUFFIXES} and any(t in (p, *p.parents) for t in tops)]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words!r}; write {instead}"
        for path in paths
        for line, words, instead in sorted(banned_in_file(path))
    ]

    assert paths
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("x = 1  # started anew\n", [1]),
        ('def f():\n    """First.\n\n    For want\n    of a worker.\n    """\n', [4]),
        ("x = (\n    f'{1} is told to stop'\n)\n", [2]),
        ("told = {'told': 1}\nanew(told['told'])\n", []),
        ("# as long as it is so far as I know\n", []),
        ("# Who has died is dialled.\n# Who knows it? A worker who died.\n", [1]),
    ],
)
def test_words_are_found_in_comments_docstrings_and_messages(source: str, lines: list[int], tmp_path: Path) -> None:
    """And in no name, key or code."""
    path = tmp_path / "code.py"
    path.write_text(source)

    assert lines == [line for line, _, _ in banned_in_file(path)]
