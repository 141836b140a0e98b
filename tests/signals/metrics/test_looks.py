"""Memory and steps: several series of one instant are one record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracecore.signals.metrics.point import Sample

Make = Callable[..., Sample]
Bridged = Callable[..., list[dict[str, Any]]]
FREE, TOTAL = "hw.gpu.memory.free", "hw.gpu.memory.total"


def test_free_and_total(sample: Make, bridged: Bridged) -> None:
    (made,) = bridged([sample(FREE, 10, 0), sample(TOTAL, 80, 0), sample("hw.gpu.memory.used", 60, 0)])
    assert (made[FREE], made[TOTAL]) == (10, 80)


def test_the_total_follows_from_its_parts(sample: Make, bridged: Bridged) -> None:
    parts = [sample(FREE, 10, 0), sample("hw.gpu.memory.used", 60, 0)]
    assert bridged(parts)[0][TOTAL] == 70
    assert bridged([*parts, sample("hw.gpu.memory.reserved", 5, 0)])[0][TOTAL] == 75


def test_what_is_not_measured_is_not_zero(sample: Make, bridged: Bridged) -> None:
    assert bridged([sample("hw.gpu.memory.used", 60, 0)]) == []
    (made,) = bridged([sample(FREE, 10, 0)])
    assert TOTAL not in made


def test_an_instance_says_nothing_about_the_gpu(sample: Make, bridged: Bridged) -> None:
    assert bridged([sample(FREE, 10, 0, hw__gpu__mig__id="3")]) == []


def test_gpus_and_scrapes_are_apart(sample: Make, bridged: Bridged) -> None:
    found = bridged([sample(FREE, 10 * gpu + second, second, gpu) for gpu in range(2) for second in range(2)])
    assert [(made["hw.gpu.index"], made["at"], made[FREE]) for made in found] == [
        (0, 0, 0),
        (1, 0, 10),
        (0, 1, 1),
        (1, 1, 11),
    ]


def steps(make: Make, values: list[float], rank: int = 3) -> list[Sample]:
    who = {"gen_ai__training__rank": rank, "gen_ai__training__job_id": "j"}
    return [
        one
        for place, value in enumerate(values)
        for one in (
            make("gen_ai.training.step", value, 15 * place, None, **who),
            make("tracecore.training.iter_time_s", 0.5 + place, 15 * place, None, **who),
        )
    ]


def test_a_step_is_told_when_it_is_made(sample: Make, bridged: Bridged) -> None:
    found = bridged(steps(sample, [7, 8, 8, 10]))
    assert [(made["at"], made["gen_ai.training.step"], made["tracecore.training.iter_time_s"]) for made in found] == [
        (15, 8, 1.5),
        (45, 10, 3.5),
    ]
    assert {(made["gen_ai.training.rank"], made["gen_ai.training.job_id"]) for made in found} == {(3, "j")}


def test_a_restart_goes_on_from_its_checkpoint(sample: Make, bridged: Bridged) -> None:
    assert [made["gen_ai.training.step"] for made in bridged(steps(sample, [7, 8, 2, 3]))] == [8, 2, 3]


def test_ranks_are_apart(sample: Make, bridged: Bridged) -> None:
    found = bridged(steps(sample, [1, 2], 0) + steps(sample, [1, 1], 1))
    assert [made["gen_ai.training.rank"] for made in found] == [0]


def test_steps_of_nobody_are_left_out(sample: Make, bridged: Bridged) -> None:
    assert bridged([sample("gen_ai.training.step", second, second, None) for second in range(3)]) == []
