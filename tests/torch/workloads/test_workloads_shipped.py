"""The workloads that ship: digits, CIFAR-10 in its binary format, and synthetic images."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from batchgrowth.errors import DataError, WorkloadError
from batchgrowth_trainer.replica.data import fetch
from batchgrowth_trainer.user_code import load_workload
from batchgrowth_trainer.workload import Workload, checked, predict
from batchgrowth_trainer.workloads import digits
from batchgrowth_trainer.workloads.cifar10 import PADDING, TEST_FILES, TRAIN_FILES, crop_and_flip, normalised
from batchgrowth_trainer.workloads.networks import vgg11, wide_resnet
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F

PACKAGE = "batchgrowth_trainer.workloads"


@pytest.fixture(autouse=True)
def _own_generator_and_one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)


def load(entry: str, examples: int | None = None, **arguments: str) -> Workload:
    return load_workload(f"{PACKAGE}.{entry}", arguments, seed=0, examples=examples)


def one_update(workload: Workload, batch: int = 4) -> Tensor:
    """The per-example losses of a first batch, after their gradient has reached every parameter."""
    inputs, target = fetch(workload.train, torch.arange(batch))
    inputs = workload.augment(inputs) if workload.augment else inputs
    losses = checked(workload.loss(predict(workload.model, inputs), target), batch)
    losses.sum().backward()
    assert all(parameter.grad is not None for parameter in workload.model.parameters())
    return losses


def test_digits_are_split_by_class_the_same_for_every_seed() -> None:
    first, second = (load_workload(f"{PACKAGE}.digits:mlp", {}, seed=seed, examples=1437) for seed in (0, 1))
    train, test = first.train, first.test
    assert (len(train), len(test)) == (1437, 360)
    assert torch.equal(train.tensors[0], second.train.tensors[0])
    together, apart = (torch.bincount(data.tensors[1]) / len(data) for data in (train, test))
    torch.testing.assert_close(together, apart, atol=0.003, rtol=0)


def test_no_digit_is_in_both_parts() -> None:
    train, test = digits.split()
    rows = torch.cat([train.tensors[0], test.tensors[0]]).flatten(1)
    assert 1797 == len(rows) == len(torch.unique(rows, dim=0))


def test_digits_and_their_split_are_scikit_learns() -> None:
    theirs = load_digits()
    chosen = train_test_split(range(1797), test_size=360, stratify=theirs.target, random_state=0)
    for indices, (images, labels) in zip(chosen, (part.tensors for part in digits.split()), strict=True):
        expected = torch.tensor(theirs.images[sorted(indices)] / 16, dtype=torch.float32)
        assert torch.equal(expected.unsqueeze(1), images)
        assert theirs.target[sorted(indices)].tolist() == labels.tolist()


def test_digits_are_images_of_grey_levels_from_0_to_1() -> None:
    images, labels = digits.split()[0].tensors
    assert (images.shape, images.dtype, labels.dtype) == ((1437, 1, 8, 8), torch.float32, torch.int64)
    assert (images.min().item(), images.max().item()) == (0.0, 1.0)


def test_the_digits_net_has_dropout_and_batch_norm_and_the_mlp_neither() -> None:
    kinds = {type(module) for module in load("digits:workload").model.modules()}
    assert {nn.Dropout, nn.BatchNorm2d} <= kinds
    assert {nn.Dropout, nn.BatchNorm2d}.isdisjoint({type(module) for module in load("digits:mlp").model.modules()})


@pytest.mark.parametrize("entry", ["workload", "mlp"])
def test_digits_learn_by_a_plain_loop(entry: str) -> None:
    """Three epochs of ordinary SGD are enough for nine in ten test images."""
    workload = load(f"digits:{entry}", hidden="32")
    optimizer = torch.optim.SGD(workload.model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(3):
        for indices in torch.randperm(1437).split(32):
            inputs, target = fetch(workload.train, indices)
            optimizer.zero_grad()
            workload.loss(predict(workload.model, inputs), target).mean().backward()
            optimizer.step()
    workload.model.eval()
    inputs, target = fetch(workload.test, torch.arange(360))
    assert workload.metrics["accuracy"](predict(workload.model, inputs), target).mean() > 0.9


@pytest.mark.parametrize("text", ["0", "-3", "many", "1.5"])
def test_a_width_that_is_no_whole_number(text: str) -> None:
    with pytest.raises(WorkloadError, match=rf"workload\.arguments\.hidden: '{text}' was given; write a whole number"):
        load("digits:workload", hidden=text)


@pytest.mark.parametrize("text", ["1", "-0.1", "half", "nan"])
def test_a_dropout_that_is_no_share(text: str) -> None:
    with pytest.raises(WorkloadError, match=r"arguments\.dropout: .* write a number of at least 0 and below 1"):
        load("digits:workload", dropout=text)


def write_cifar10(folder: Path, per_file: int = 3) -> np.ndarray:
    """Five training files and one test file in the binary format; returns all records, (6 · per_file, 3073)."""
    generator = np.random.default_rng(0)
    records = generator.integers(0, 256, (6 * per_file, 3073), dtype=np.uint8)
    records[:, 0] = np.arange(len(records)) % 10
    for name, part in zip([*TRAIN_FILES, *TEST_FILES], np.split(records, 6), strict=True):
        (folder / name).write_bytes(part.tobytes())
    return records


def test_cifar10_records_become_normalised_images(tmp_path: Path) -> None:
    records = write_cifar10(tmp_path)
    workload = load("cifar10_vgg11:workload", examples=15, data=str(tmp_path))
    inputs, target = fetch(workload.train, torch.tensor([14, 0]))
    assert (inputs.shape, inputs.dtype) == ((2, 3, 32, 32), torch.float32)
    assert target.tolist() == [4, 0]
    green_at_row_2_column_5 = int(records[14, 1 + 1024 + 2 * 32 + 5])
    assert (green_at_row_2_column_5 / 255 - 0.4822) / 0.2435 == pytest.approx(inputs[0, 1, 2, 5].item(), abs=1e-5)
    assert len(workload.test) == 3


def test_one_cifar10_example_is_the_same_alone_and_in_a_batch(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    train = load("cifar10_vgg11:workload", data=str(tmp_path)).train
    assert torch.equal(fetch(train, torch.tensor([7]))[0][0], train[7][0])


@pytest.mark.parametrize("name", [*TRAIN_FILES, *TEST_FILES])
def test_a_missing_cifar10_file_is_named_with_where_to_get_it(tmp_path: Path, name: str) -> None:
    write_cifar10(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(
        DataError, match=rf"{name}: No such file.*CIFAR-10 binary version from https://.*arguments\.data"
    ):
        load("cifar10_vgg11:workload", data=str(tmp_path))


@pytest.mark.fault("D03")
@pytest.mark.parametrize("size", [0, 1, 3072, 3074, 2 * 3073 + 100])
def test_a_truncated_cifar10_file_is_named(tmp_path: Path, size: int) -> None:
    write_cifar10(tmp_path)
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes((path.read_bytes() + bytes(100))[:size])
    with pytest.raises(DataError, match=rf"data_batch_3\.bin: {size} bytes is not a multiple of the record size, 3073"):
        load("cifar10_vgg11:workload", data=str(tmp_path))


def test_a_label_above_nine_is_another_format(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073) + bytes([57]) + bytes(3072))
    with pytest.raises(DataError, match=r"test_batch\.bin: record 1 has label 57, not 0 to 9"):
        load("cifar10_vgg11:workload", data=str(tmp_path))


def test_crop_and_flip_moves_each_image_by_its_own_draw() -> None:
    images = torch.rand(64, 3, 32, 32)
    moved = crop_and_flip(images)
    padded = F.pad(images, (PADDING,) * 4)
    found = [place(padded[k], moved[k]) for k in range(64)]
    assert all(found)
    assert len(set(found)) > 40
    assert {where[2] for where in found if where} == {True, False}


def place(padded: Tensor, image: Tensor) -> tuple[int, int, bool] | None:
    for top in range(2 * PADDING + 1):
        for left in range(2 * PADDING + 1):
            window = padded[:, top : top + 32, left : left + 32]
            for flipped in (False, True):
                if torch.equal(window.flip(2) if flipped else window, image):
                    return top, left, flipped
    return None


def test_augmentation_follows_from_the_seed() -> None:
    images = torch.rand(8, 3, 32, 32)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(crop_and_flip(images))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_normalised_images_of_the_usual_mean_are_zero() -> None:
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1).expand(3, 4, 4) * 255
    assert normalised(mean).abs().max() < 1e-6


def test_wrn_16_4_has_the_papers_number_of_weights() -> None:
    assert sum(parameter.numel() for parameter in wide_resnet(16, 4, 0.3).parameters()) == 2_748_890
    assert {module.p for module in wide_resnet(16, 4, 0.3).modules() if isinstance(module, nn.Dropout)} == {0.3}


def test_vgg11_has_eight_convolutions_and_one_linear_layer() -> None:
    kinds = [type(module) for module in vgg11().modules()]
    assert tuple(kinds.count(kind) for kind in (nn.Conv2d, nn.BatchNorm2d, nn.Linear)) == (8, 8, 1)


@pytest.mark.parametrize(
    ("entry", "arguments"), [("cifar10_wrn", {"depth": "10", "width": "1"}), ("cifar10_vgg11", {})]
)
def test_the_cifar10_nets_train_on_their_files(tmp_path: Path, entry: str, arguments: dict[str, str]) -> None:
    write_cifar10(tmp_path)
    losses = one_update(load(f"{entry}:workload", data=str(tmp_path), **arguments))
    assert torch.isfinite(losses).all()


@pytest.mark.parametrize("depth", ["12", "9", "4"])
def test_a_depth_that_no_wide_resnet_has(tmp_path: Path, depth: str) -> None:
    with pytest.raises(WorkloadError, match=rf"workload\.arguments\.depth: '{depth}' was given"):
        load("cifar10_wrn:workload", data=str(tmp_path), depth=depth)


def synthetic(**arguments: str) -> Workload:
    return load_workload(f"{PACKAGE}.synthetic:workload", arguments, seed=0, examples=int(arguments["examples"]))


@pytest.mark.parametrize("model", ["wrn", "vgg11", "mlp"])
def test_synthetic_images_train_every_model(model: str) -> None:
    workload = synthetic(model=model, examples="16", test="4")
    assert (len(workload.train), len(workload.test)) == (16, 4)
    assert torch.isfinite(one_update(workload)).all()


def test_synthetic_images_follow_from_their_own_seed() -> None:
    first, same, other = (synthetic(model="mlp", examples="8", seed=seed).train.tensors for seed in "001")
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, same, strict=True))
    assert not torch.equal(first[0], other[0])


def test_synthetic_images_can_be_told_apart() -> None:
    """Every test image is nearest to the pattern of its class, so that a net has something to learn."""
    train, test = (data.tensors for data in (lambda w: (w.train, w.test))(synthetic(model="wrn", examples="500")))
    centres = torch.stack([train[0][train[1] == label].mean(0) for label in range(10)]).flatten(1)
    nearest = torch.cdist(test[0].flatten(1), centres).argmin(1)
    assert (nearest == test[1]).sum() == 256


def test_an_unknown_synthetic_model() -> None:
    with pytest.raises(WorkloadError, match=r"workload\.arguments\.model: 'resnet' was given; write wrn, vgg11, mlp"):
        load("synthetic:workload", model="resnet")
