"""Goodput: the d of largest throughput · statistical efficiency. Pollux of Qiao et al., OSDI 2021.

The throughput is d / (a + b · load) examples per second, where load is the share of the busiest of the workers that
the plan has for d, and a and b are fitted to the timed updates. The efficiency is (φ + B0) / (φ + d), with the noise
scale φ = tr(Σ) / |G|²: the progress per example, relative to that in batches of B0.

The rule looks at a clock, so another run may decide otherwise; its decisions as milestones repeat a run exactly.
"""

import math
from collections.abc import Callable

from batchgrowth.extend import Look, MeasuredEntry, busiest, ratio, two_shards

_QUARTERS = (1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429)
"""2^(k/4), written out because a power may differ in its last bit between machines."""


class GoodputRule:
    """The batch follows the useful examples per second."""

    def value(self, look: Look) -> float:
        """The useful examples per second of the present batch; 0 before an update was timed."""
        return goodput(look)(look.wanted)

    def wanted(self, look: Look, value: float) -> float:  # noqa: ARG002
        """The candidate with the largest goodput, the smallest of these; the present batch if no update was timed."""
        if not look.timings.updates:
            return look.wanted
        return max(candidates(look), key=goodput(look))


def candidates(look: Look) -> list[int]:
    """At most 100 batch sizes from the first one to the largest of this look, in whole shards, 2^(1/4) apart."""
    sizes, shard = {look.wanted, look.largest}, look.shard
    for octave in range(math.ceil(math.log2(look.largest / look.initial))):
        wholes = (math.floor(look.initial * 2**octave * factor / shard + 0.5) * shard for factor in _QUARTERS)
        sizes.update(size for size in wholes if look.initial <= size < look.largest)
    return sorted({*sizes, look.initial})


def goodput(look: Look) -> Callable[[int], float]:
    """A function: the examples per second of a batch size, times its efficiency; 0 if no update was timed."""
    fixed, per_example = look.timings.line()
    noise = ratio(max(look.now.trace, 0.0), look.now.square)

    def of(batch: int) -> float:
        seconds = fixed + per_example * busiest(batch, -(-batch // look.shard), look.workers(batch))
        return batch / seconds * efficiency(noise, look.initial, batch) if seconds > 0 else 0.0

    return of


def efficiency(noise: float, initial: int, batch: int) -> float:
    """The progress per example, relative to that of the first batch size; 1 if the noise cannot be measured."""
    return (noise + initial) / (noise + batch) if math.isfinite(noise) else 1.0


ENTRY = MeasuredEntry(
    name="Goodput",
    summary="follows throughput times statistical efficiency, measured with a clock: only a replay repeats a run",
    source="Pollux of Qiao et al., 2021",
    quantity="goodput",
    needs_noise=True,
    looks_at_clock=True,
    implementation=lambda _: GoodputRule(),
    outer_rules=two_shards("Goodput"),
)
