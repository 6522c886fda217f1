"""A folder of code becomes one ConfigMap, or the reason why not is told."""

import base64
import re
from pathlib import Path

import pytest
from batchgrowth.errors import SpecError
from batchgrowth.schema import CONFIG_KEY, OBJECT_NAME
from batchgrowth.spec.training import Source
from batchgrowth_operator.submit import LARGEST_CODE_BYTES, has_module, packed, read_folder


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_what_is_code_and_what_is_not(tmp_path: Path) -> None:
    folder = write(tmp_path, net_py="1", layers__norm_py="2", layers__table="3", runs__old__log="4")
    for name in ("job.yaml", ".secret", ".git/config", "__pycache__/net.pyc", "env/pyvenv.cfg", "env/lib.py", "a.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("no")

    (folder / "gone.py").symlink_to("nowhere")

    files = read_folder(folder, ["*.png", "layers/tab*"], folder / "job.yaml")

    assert files == {"net.py": b"1", "layers/norm.py": b"2"}


def test_links_are_followed_once(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", net_py="1")
    shared = write(tmp_path / "shared", layers_py="2", parts__norm_py="3")
    (folder / "shared").symlink_to(shared)
    (folder / "one.py").symlink_to(shared / "layers.py")
    (folder / "up").symlink_to("..")
    (shared / "parts" / "back").symlink_to(folder)

    files = read_folder(folder)

    assert files == {"net.py": b"1", "one.py": b"2", "shared/layers.py": b"2", "shared/parts/norm.py": b"3"}


def test_modules_of_a_folder_are_keys_of_their_names() -> None:
    code = packed("digits", {"net.py": b"import torch\n", "table.npy": b"\x93NUMPY\x00\xff"})

    assert {"configMap": code.config_map["metadata"]["name"]} == code.source
    assert code.config_map["data"] == {"net.py": "import torch\n"}
    assert base64.b64decode(code.config_map["binaryData"]["table.npy"]) == b"\x93NUMPY\x00\xff"
    assert (code.config_map["immutable"], code.num_files, code.num_bytes) == (True, 2, 21)


def test_modules_of_packages_keep_their_paths() -> None:
    """A key has no slash, so two files may ask for one key."""
    files = {"own/a.py": b"1", "own.a.py": b"2", "own/deep/b.py": b"3", f"own/{'x' * 240}.py": b"4", "own/c=1.py": b"5"}
    code = packed("digits", files)

    paths = {item["key"]: item["path"] for item in code.source["items"]}

    Source.model_validate(code.source)
    assert sorted(files) == sorted(paths.values())
    assert files == {paths[key]: text.encode() for key, text in code.config_map["data"].items()}
    assert all(re.match(CONFIG_KEY, key) and len(key) <= 253 for key in paths)


def test_the_name_is_that_of_the_content() -> None:
    """And of the paths, so that code which moves is other code; the order of the files is not."""
    files = {"a.py": b"1", "b.py": b"2"}
    same, *others = (
        packed("x" * 44, given).source["configMap"]
        for given in (dict(reversed(files.items())), {"a.py": b"12", "b.py": b""}, {"a.py": b"1", "c.py": b"2"})
    )
    name = packed("x" * 44, files).source["configMap"]
    assert name == same
    assert len({name, *others}) == 3
    assert re.match(OBJECT_NAME, name)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "has no files; give a folder with the modules"),
        ({"big.py": "x" * LARGEST_CODE_BYTES, "small.py": "x"}, r"1,000,001 bytes.*largest are big\.py \(1,000,000\)"),
        ({f"m{number}.py": "" for number in range(257)}, "257 files, more than 256; .*docs/own-code.md"),
        ({"a b.py": ""}, "a b.py; rename it"),
    ],
    ids=["empty", "too big", "too many", "odd name"],
)
def test_what_cannot_be_packed(tmp_path: Path, files: dict[str, str], told: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=f"^--code: .*{told}"):
        read_folder(tmp_path)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="absent; give a folder"):
        read_folder(tmp_path / "absent")


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    write(tmp_path, net_py="1")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(SpecError, match=r"net\.py cannot be read \(permission denied\)"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("net.py", True),
        ("net/__init__.py", True),
        ("net/sub.py", True),
        ("net/sub/__init__.py", True),
        ("net/net.py", False),
        ("nets.py", False),
    ],
)
def test_whether_the_entrypoint_is_in_it(path: str, found: bool) -> None:
    assert found == has_module({path: b""}, "net.sub:workload")
