"""What counts as the same collective."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracecore.signals.flight_recorder.dump import dump_of, make_entry
from tracecore.signals.flight_recorder.join import join
from tracecore.signals.flight_recorder.matching import operation_of, signature


def entry(name: str, given: list[Any], taken: list[Any], types: Any = "Float", **more: Any) -> dict[str, Any]:
    return {
        "profiling_name": name,
        "process_group": ["0", "default"],
        "collective_seq_id": 1,
        "input_sizes": given,
        "output_sizes": taken,
        "input_dtypes": types,
        "output_dtypes": types,
        "state": "scheduled",
        **more,
    }


def agree(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return make_entry(a, 0).signature == make_entry(b, 0).signature


def test_names() -> None:
    assert operation_of("nccl:all_reduce") == "all_reduce"
    assert operation_of("all_reduce") == "all_reduce"


@pytest.mark.parametrize("backend", ["nccl", "ncclx", "gloo", "xccl", "mccl"])
def test_backends_do_not_matter(backend: str) -> None:
    assert agree(entry(f"{backend}:all_reduce", [[4]], [[4]]), entry("nccl:all_reduce", [[4]], [[4]]))


def test_operation_size_and_type_must_agree() -> None:
    base = entry("nccl:all_reduce", [[4, 4]], [[4, 4]])
    assert not agree(base, entry("nccl:all_gather", [[4, 4]], [[4, 4]]))
    assert not agree(base, entry("nccl:all_reduce", [[5, 4]], [[4, 4]]))
    assert not agree(base, entry("nccl:all_reduce", [[4, 4]], [[5, 4]]))
    assert not agree(base, entry("nccl:all_reduce", [[4, 4]], [[4, 4]], "Half"))


def test_a_view_of_another_shape_agrees() -> None:
    assert agree(entry("nccl:all_reduce", [[4, 4]], [[4, 4]]), entry("nccl:all_reduce", [[16]], [[2, 8]]))


@pytest.mark.parametrize("name", ["nccl:all_to_all", "nccl:alltoall_base", "nccl:all_to_allv"])
def test_uneven_exchange_is_legitimate(name: str) -> None:
    assert agree(entry(name, [[4]], [[9]]), entry(name, [[5]], [[2]]))


def test_roots_of_gather_and_scatter() -> None:
    whole, part = [[4], [4]], [[4]]
    assert agree(entry("nccl:gather", part, whole), entry("nccl:gather", part, []))
    assert agree(entry("nccl:scatter", whole, part), entry("nccl:scatter", [], part))
    assert not agree(entry("nccl:gather", [[4]], whole), entry("nccl:gather", [[5]], []))


@pytest.mark.parametrize("name", ["scatter", "gather"])
def test_the_side_that_only_the_root_has(name: str) -> None:
    whole, part, none = [[128, 64], [128, 64]], [[128, 64]], [[0]]

    def nccl(sides: list[Any], types: list[str], count: int = 1) -> dict[str, Any]:
        return entry(f"nccl:{name}", [[128 * count, 64]], sides, output_dtypes=types)

    # As torch 2.11 writes them over NCCL: the part is the input of both.
    root, other = nccl(whole, ["Float", "Float"]), nccl(none, ["UNKNOWN_SCALAR"])
    assert agree(root, other)
    assert not agree(root, nccl(none, ["UNKNOWN_SCALAR"], count=2))
    assert make_entry(root, 0).signature == f"{name}|(8192,)|('Float',)"
    # Over gloo the part of a scatter is the output.
    assert agree(entry("gloo:scatter", whole, part), entry("gloo:scatter", [], part, input_dtypes=[]))
    # Recorders before 2.2 write no types.
    old = {"input_dtypes": None, "output_dtypes": None}
    assert agree(entry(f"nccl:{name}", part, whole, **old), entry(f"nccl:{name}", part, none, **old))


def test_uneven_parts_of_one_whole() -> None:
    assert agree(entry("gloo:all_gather", [[3]], [[3], [5]]), entry("gloo:all_gather", [[5]], [[3], [5]]))
    assert agree(entry("nccl:reduce_scatter", [[3], [5]], [[3]]), entry("nccl:reduce_scatter", [[3], [5]], [[5]]))


def test_hostile_sizes_are_bounded() -> None:
    deep: list[Any] = []
    deep.append(deep)
    assert signature("all_reduce", (), (), (), ()) == make_entry(entry("all_reduce", "x", None, None), 0).signature  # type: ignore[arg-type]
    assert make_entry(entry("all_reduce", deep, deep), 0).input_sizes == ((),)
    assert make_entry(entry("all_reduce", [[2**62, 2**62, 2**62]], []), 0).signature


EXPECTED = {
    "FULLY_MATCHED": None,
    "UNDECIDED": None,
    "COLLECTIVE_STATE_MISMATCH": None,
    "COLLECTIVE_TYPE_MISMATCH": True,
    "SIZE_OR_SYNTAX_MISMATCH": True,
    "COLLECTIVE_DTYPE_MISMATCH": True,
}


def test_pytorchs_own_pairs(shared_data: Path) -> None:
    cases = json.loads((shared_data / "peers" / "fr_match_cases.json").read_text())
    seen = 0
    for case in cases["pairs"]:
        dumps = [
            dump_of(f"rank_{rank}", rank, {"version": "2.5", "entries": [case[side]]}) for rank, side in enumerate("ab")
        ]
        group = join(dumps).groups[0]
        found = group.disagreement or group.settled
        if case["a"] == case["b"]:
            assert found is None, case["name"]  # ranks that say the same do not disagree, whatever they say
        else:
            assert (found is not None) == bool(EXPECTED[case["expect"]]), case["name"]
        seen += 1
    assert seen >= 10


def test_groups_that_share_a_name_are_told_apart_by_their_members() -> None:
    def root(rank: int) -> dict[str, Any]:
        return {
            "version": "2.5",
            "pg_config": {
                "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
                "1": {"name": "1", "desc": "own", "ranks": f"[{rank}]"},
            },
            "entries": [
                entry("nccl:all_reduce", [[4, 4]], [[4, 4]], pg_id=0, record_id=0),
                entry("nccl:all_reduce", [[5 + rank]], [[5 + rank]], pg_id=1, process_group=["1", "own"], record_id=1),
            ],
        }

    joined = join([dump_of(f"rank_{rank}", rank, root(rank)) for rank in (0, 1)])
    assert [(group.label, group.members, group.disagreement) for group in joined.groups] == [
        ("0", (0, 1), None),
        ("1@0", (0,), None),
        ("1@1", (1,), None),
    ]


def test_members_of_a_coalesced_group_are_compared_in_order() -> None:
    def root(second: int) -> dict[str, Any]:
        rows = [
            entry("nccl:_broadcast_oop", [[4]], [[4]], record_id=0),
            entry("nccl:_broadcast_oop", [[second]], [[second]], record_id=1),
            entry("nccl:ALLGATHER_coalesced", [[4]], [[9]], record_id=2),
        ]
        return {"version": "2.5", "entries": rows}

    same = join([dump_of("rank_0", 0, root(5)), dump_of("rank_1", 1, root(5))])
    assert same.groups[0].disagreement is None
    differs = join([dump_of("rank_0", 0, root(5)), dump_of("rank_1", 1, root(4))])
    assert differs.groups[0].disagreement is not None
