"""Counters of errors: what rose, by how much, since when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tracecore.signals.metrics.point import Sample

Make = Callable[..., Sample]
Bridged = Callable[..., list[dict[str, Any]]]
DBE = {"error__type": "uncorrected", "error__subtype": "double_bit", "error__persistence": "volatile"}
SBE = {"error__type": "corrected", "error__subtype": "single_bit", "error__persistence": "volatile"}


def counter(make: Make, values: Sequence[float | None], gpu: int = 0, **attributes: Any) -> list[Sample]:
    """Values 15 s apart; None is a scrape that is missing."""
    return [
        make("hw.errors", value, 15 * place, gpu, **{**DBE, **attributes})
        for place, value in enumerate(values)
        if value is not None
    ]


@pytest.mark.parametrize(
    ("values", "rises"),
    [
        pytest.param([0, 0, 2, 2], [(15, 2)], id="a rise, dated at the sample before"),
        pytest.param([7, 7, 7], [], id="old errors are no rise"),
        pytest.param([7], [], id="one scrape shows no rise"),
        pytest.param([0, 1, 3], [(0, 1), (15, 2)], id="two rises"),
        pytest.param([5, 1, 1], [(0, 1)], id="a reset, and one since"),
        pytest.param([5, 0, 2], [(15, 2)], id="a reset, then two"),
        pytest.param([5, 0, 0, 0], [], id="a reset alone"),
        pytest.param([5, 0, 5, 5], [], id="an exporter that starts with zeros"),
        pytest.param([5, 0, 0, 5, 6], [(45, 1)], id="an exporter that starts with zeros, then a rise"),
        pytest.param([5, None, None, 6], [(0, 1)], id="missing scrapes"),
        pytest.param([5, *[None] * 99, 6], [(1230, 1)], id="missing for long: not dated back without end"),
        pytest.param([0, -1, 0], [], id="nonsense"),
        pytest.param([0, 0.5, 0.9], [], id="less than one"),
    ],
)
def test_rises(sample: Make, bridged: Bridged, values: list[float | None], rises: list[tuple[float, int]]) -> None:
    found = bridged(counter(sample, values))
    assert [(made["at"] + 30, made["hw.errors.delta"]) for made in found] == rises, "and 30 s that exporters remember"


def test_a_record_says_which_error_of_which_gpu(sample: Make, bridged: Bridged) -> None:
    assert bridged(counter(sample, [0, 1], 2)) == [
        {
            "at": -30.0,
            "tracecore.layer": "metrics",
            "host.name": "node-7",
            "gpu.id": "0000:3a:00.0",
            "gpu.uuid": "GPU-2",
            "hw.gpu.index": 2,
            "error.type": "uncorrected",
            "error.subtype": "double_bit",
            "error.persistence": "volatile",
            "hw.errors.delta": 1,
        }
    ]


def test_a_pod_that_ends_does_not_end_its_gpus_counter(sample: Make, bridged: Bridged) -> None:
    held = counter(sample, [3, 3], k8s__pod__name="train-0", k8s__namespace__name="ml")
    free = [sample("hw.errors", 4, 30, **DBE)]
    assert [made["hw.errors.delta"] for made in bridged(held + free)] == [1]


def test_kinds_of_error_are_apart(sample: Make, bridged: Bridged) -> None:
    both = counter(sample, [0, 1]) + counter(sample, [0, 40], **SBE)
    assert {made["error.type"]: made["hw.errors.delta"] for made in bridged(both)} == {
        "uncorrected": 1,
        "corrected": 40,
    }


def test_a_total_is_not_counted_again_by_its_parts(sample: Make, bridged: Bridged) -> None:
    parts = counter(sample, [0, 2], error__location="dev") + counter(sample, [0, 1], error__location="l2")
    assert [made["hw.errors.delta"] for made in bridged(parts)] == [3]
    assert [made["hw.errors.delta"] for made in bridged(parts + counter(sample, [0, 3]))] == [3]


def test_a_part_that_rises_without_its_total_is_no_rise(sample: Make, bridged: Bridged) -> None:
    assert bridged(counter(sample, [4, 4]) + counter(sample, [0, 1], error__location="l2")) == []


def test_instances_of_a_gpu_repeat_its_counter(sample: Make, bridged: Bridged) -> None:
    instances = [one for mig in "3459" for one in counter(sample, [0, 2], hw__gpu__mig__id=mig)]
    assert [made["hw.errors.delta"] for made in bridged(instances)] == [2]


def test_all_gpus_alike_are_as_many_records(sample: Make, bridged: Bridged) -> None:
    found = bridged([one for gpu in range(4) for one in counter(sample, [0, 1], gpu)])
    assert [made["hw.gpu.index"] for made in found] == [0, 1, 2, 3]


def test_link_errors_are_not_memory_errors(sample: Make, bridged: Bridged) -> None:
    assert bridged(counter(sample, [0, 9], error__type="nvlink_crc_flit")) == []


def test_a_late_sample_takes_its_place(sample: Make, bridged: Bridged) -> None:
    samples = counter(sample, [0, 1, 1])
    assert bridged([samples[0], samples[2], samples[1]]) == bridged(samples)


def test_the_same_scrape_twice_is_one(sample: Make, bridged: Bridged) -> None:
    samples = counter(sample, [0, 1])
    assert len(bridged(samples + samples)) == 1


def test_silent_corruption(sample: Make, bridged: Bridged) -> None:
    samples = [
        sample("hw.gpu.sdc", value, 15 * place, 1, hw__gpu__sdc__kind="checksum")
        for place, value in enumerate([4, 4, 6])
    ]
    (made,) = bridged(samples)
    assert (made["hw.gpu.sdc.delta"], made["hw.gpu.sdc.kind"], made["at"], made["gpu.id"]) == (
        2,
        "checksum",
        30,
        "0000:2a:00.0",
    )
