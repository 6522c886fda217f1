"""`make gpu`: what it measures, tried on a CPU, and what it says where there is no GPU."""

import pytest
import torch

from bench import gpu
from bench.cases import cases


def test_every_system_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    [case] = [case for case in cases(quick=False) if case.name == "mlp-512"]
    found = gpu.compare(case, "CPU", warm=1, timed=4)
    gpu.show_times(case.name, found)

    names = {gpu.SAME, gpu.OURS, gpu.SHARDS, gpu.FREE, gpu.PLAIN}
    names |= {f"{who}, {precision}" for who in ("plain torch", "batchgrowth") for precision in gpu.NARROWER}
    assert {name: len(times) for name, times in found.items()} == dict.fromkeys(names, 4)
    assert all(time > 0 for times in found.values() for time in times)
    printed = capsys.readouterr().out
    assert all(f"| {name} " in printed for name in names)


def test_without_a_gpu_it_says_what_was_never_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu.main()

    lines = capsys.readouterr().out.splitlines()
    assert "No CUDA device is visible here, so nothing was run." in lines[0]
    assert "  tests/gpu/test_same_weights_on_a_gpu.py::test_one_process_repeats_itself" in lines
    assert lines[-3:] == ["  benchmark mlp-512", "  benchmark wrn-64", "  benchmark all-vgg11-256"]
