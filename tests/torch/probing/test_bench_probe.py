"""`python -m bench.probe`, with a small net and few epochs."""

import math

import pytest

from bench.probe import PROBED, GrowthAccuracy, ProbeCase, measure, show_results


def test_probes_and_the_growths_beside_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure(ProbeCase(arguments="{hidden: '4'}", epochs=3, probe_after=(1,), seeds=1, orders=1, examples=384))
    show_results(found)
    printed = capsys.readouterr().out

    assert [one.growth for one in found.growths] == ["constant 32", "Geometric", PROBED]
    assert found.growths[0].updates == 135
    assert [(probe["epoch"], probe["batch"]) for probe in found.probes] == [(1, 32)]
    assert found.probed_examples in (5 * 384, 6 * 384)
    assert "**What the probes found**" in printed
    assert "**Test accuracy, 1 seeds**" in printed


def test_the_error_of_an_accuracy() -> None:
    assert GrowthAccuracy("a", [97.0, 99.0], 10).error == pytest.approx(1.0)
    assert math.isnan(GrowthAccuracy("a", [97.0], 10).error)
