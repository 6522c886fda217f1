"""Every remedy that a message prints helps: each bad manifest is mended as its message says, and is then accepted."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth.cli import check_pods
from batchgrowth.errors import PlanError, SpecError
from batchgrowth.manifest.crd import openapi_schema
from batchgrowth.manifest.documents import ManifestLoader, read_document
from batchgrowth.manifest.faults import meant
from batchgrowth.manifest.pod_limits import PodSecurity
from batchgrowth.manifest.reading import read_manifest
from batchgrowth.plan import make_plan
from batchgrowth.schema import WORDS
from language import written

CORPUS = Path(__file__).parents[2] / "corpus"
DIGITS = (CORPUS.parents[1] / "examples" / "digits.yaml").read_text()
EXPECTED = yaml.safe_load((CORPUS / "expected.yaml").read_text())
MENDED = yaml.safe_load((CORPUS / "mended.yaml").read_text())
"""Bad manifest -> the remedy that its message prints, and what a reader makes of it: path -> value, or null."""
MOST_LINES = 6


def complaints(manifest: str) -> list[str]:
    """The lines of what `batchgrowth check` says of a manifest; none if it accepts it."""
    try:
        spec = read_manifest(manifest).spec
        check_pods(spec, PodSecurity.restricted)
        make_plan(spec)
    except (SpecError, PlanError) as error:
        return str(error).splitlines()
    return []


def followed(tree: Any, line: str) -> Iterator[Any]:
    """Every way to do what one line says, each as a new tree."""
    place, _, rest = line.partition(": ")
    remedy = rest.rpartition("; ")[2] if "; give" not in rest else rest[rest.index("; give") + 2 :]
    path = [int(part) if part.isdecimal() else part for part in re.findall(r"[^.\[\]]+", place)]
    if "no such field" in rest:
        meant = re.search(r"did you mean (\w+)\?( It is given already)?", rest)
        yield from _renamed(tree, path, meant[1] if meant and not meant[2] else None)
        return
    for value in _values(remedy):
        yield _with(tree, path, value)
    if re.search(r"leave it out|remove it|or leave|or remove", remedy):
        yield from _renamed(tree, path, None)


def _values(remedy: str) -> Iterator[Any]:
    """The values that a remedy names."""
    for pattern in (
        r"did you mean (.*?)\?(?: Give .*)?$",
        r"put it in quotes, (\".*?\")",
        r"give (\S+), without quotes",
        r"as (\".*?\")",
        r"such as (\S+?),? ",
        r"such as (\S+)$",
        r"(\d+) is surely enough",
        r"give at most the (\d+) updates",
    ):
        found = re.search(pattern, remedy)
        if found:
            yield yaml.load(found[1], Loader=ManifestLoader)
    if found := re.search(r"a whole number from (\d+) to (\d+)", remedy):
        yield from dict.fromkeys((int(found[1]), 2, 32, 64, 512, int(found[2])))
    if found := re.search(r"one of ([^;]*)$", remedy):
        yield from found[1].split(", ")
    if "true or false" in remedy:
        yield from (True, False)
    if found := re.fullmatch(r"give (\S+)", remedy):
        yield found[1]


def _parent(tree: Any, path: list[Any]) -> tuple[Any, Any]:
    copied = copy.deepcopy(tree)
    parent = copied
    for part in path[:-1]:
        if isinstance(parent, dict):
            parent.setdefault(part, {})
        parent = parent[part]
    return copied, parent


def _with(tree: Any, path: list[Any], value: Any) -> Any:
    copied, parent = _parent(tree, path)
    parent[path[-1]] = value
    return copied


def _renamed(tree: Any, path: list[Any], name: str | None) -> Iterator[Any]:
    copied, parent = _parent(tree, path)
    if path[-1] in parent:
        value = parent.pop(path[-1])
        if name is not None:
            parent[name] = value
        yield copied


def is_mended(tree: Any, lines_left: int = MOST_LINES) -> bool:
    """Whether doing what the lines say, one after another, ends with an accepted manifest."""
    said = complaints(written(tree))
    if not said:
        return True
    if lines_left == 0:
        return False
    return any(is_mended(each, lines_left - len(said)) for each in followed(tree, said[0]) if lines_left > len(said))


OF_YAML = frozenset({"arguments-number-as-name", "key-a-list", "key-that-moves-the-cursor", "key-twice", "merge-key",
    "python-tag", "tagged-block", "unknown-tag"})  # fmt: skip
"""Manifests whose fault is no value."""
READABLE = [
    name
    for name, expected in EXPECTED.items()
    if not expected["names"].startswith("FILE") and name not in OF_YAML and name not in MENDED
]


@pytest.mark.fault("N10")
@pytest.mark.parametrize("name", READABLE)
def test_what_the_message_says_helps(name: str) -> None:
    tree = read_document((CORPUS / "bad" / f"{name}.yaml").read_bytes()).tree
    assert is_mended(tree), complaints(written(tree))


@pytest.mark.fault("N10")
@pytest.mark.parametrize("name", MENDED)
def test_what_a_reader_makes_of_the_message_helps(name: str) -> None:
    text = (CORPUS / "bad" / f"{name}.yaml").read_text()
    assert any(line.endswith("; " + MENDED[name]["says"]) for line in complaints(text))
    tree = read_document(text).tree
    for path, value in MENDED[name]["mended"].items():
        tree = _with(tree, path.split("."), value)
    assert complaints(written(tree)) == []


@pytest.mark.fault("N10")
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optimizer=adam", 'spec.optimizer: "adam"; did you mean {type: Adam}?'),
        ("exchange=60", "spec.exchange: 60; did you mean {timeoutSeconds: 60}?"),
        (
            "exchange={type: GatherScatter, gatherScatter: true}",
            "spec.exchange.gatherScatter: true; did you mean {backups: true}?",
        ),
        ("learningRate=0.1", 'spec.learningRate: 0.1; did you mean {initial: "0.1"}?'),
        ("learningRate.initial=5%", 'spec.learningRate.initial: "5%"; did you mean "0.05"?'),
        ("batch=64", "spec.batch: 64; did you mean {initial: 64, maximum: 64}?"),
        ("batch.initial='3 2'", 'spec.batch.initial: "3 2"; give 32, without quotes'),
        ("workers=4", "spec.workers: 4; give a block with examplesPerWorker, minimum, maximum, threads, loaders, "
         "loadedAhead, waitSeconds, leadSeconds, sameArithmetic, template"),
        ("checkpoint.volume=ckpt", 'spec.checkpoint.volume: "ckpt"; did you mean {claimName: ckpt}?'),
        ("checkpoint.volume=10Gi", 'spec.checkpoint.volume: "10Gi"; did you mean {size: 10Gi}?'),
        ("imagePullSecrets=pull", 'spec.imagePullSecrets: "pull"; did you mean [{name: pull}]?'),
        ("resources={limits: {cpu: 0.5}}", 'spec.resources.limits.cpu: 0.5; put it in quotes, "0.5", so that YAML '
         "keeps it as written"),
        ("resources={limits: {memory: 4 GB}}", 'spec.resources.limits.memory: "4 GB"; did you mean 4G?'),
        ("workload.device=gpu", 'spec.workload.device: "gpu"; give one of Auto, CPU, CUDA'),
        ("workload.entrypoint=src/my-model.py:work()", 'spec.workload.entrypoint: "src/my-model.py:work()"; did you '
         "mean src.my_model:work?"),
        ("workload.entrypoint=my_model", 'spec.workload.entrypoint: "my_model"; did you mean my_model:workload?'),
        ("suspend='yes'", 'spec.suspend: "yes"; give true, without quotes'),
    ],
)  # fmt: skip
def test_what_was_probably_meant(override: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_manifest(DIGITS, [override])
    assert str(caught.value).splitlines() == [expected]


def test_a_choice_that_cannot_be_is_not_suggested() -> None:
    with pytest.raises(SpecError) as caught:
        read_manifest(DIGITS, ["exchange.type=LocalSGD", "batch.growth=LossRatio"])
    assert str(caught.value).startswith('spec.batch.growth: "LossRatio"; give a block with type, looks, custom')


def test_trials_end() -> None:
    """A manifest with a thousand faults is answered soon; only the first messages name values."""
    steps = ", ".join(f'{{epoch: "{epoch}", batchSize: 64}}' for epoch in range(1, 300))
    with pytest.raises(SpecError) as caught:
        read_manifest(DIGITS, [f"batch.growth={{type: Milestones, milestones: {{steps: [{steps}]}}}}"])
    lines = str(caught.value).splitlines()
    assert lines[0].endswith('epoch: "1"; give 1, without quotes')
    assert lines[-1].endswith('epoch: "299"; give a whole number from 1 to 1000000')


def patterns(schema: dict[str, Any]) -> Iterator[str]:
    """Every pattern of a schema."""
    if "pattern" in schema:
        yield schema["pattern"]
    for part in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(part, dict):
            yield from patterns(part)


def test_every_pattern_has_words() -> None:
    """A string that its pattern refuses is not mended by giving a string."""
    assert set(patterns(openapi_schema()["properties"]["spec"])) - WORDS.keys() == set()


@pytest.mark.parametrize(
    ("value", "text"), [({"a": 1}, "{a: 1}"), ("seven", "seven")], ids=["a block", "a word that is neither"]
)
def test_nothing_is_guessed_for_a_block_that_a_value_cannot_fill(value: Any, text: str) -> None:
    both = {"a": {"type": "integer"}, "b": {"type": "boolean"}}
    assert [] == list(meant(value, text, {"type": "object", "properties": both, "required": ["a", "b"]}))
