"""The list of mutations that change no behaviour is up to date, and each entry means one mutation."""

from __future__ import annotations

from collections import Counter

from tests.mutants.__main__ import FOLDERS, ROOT, SOURCE, equivalents
from tests.mutants.mutations import Places


def test_each_entry_is_one_mutation_of_the_program() -> None:
    count: Counter[str] = Counter()
    for path in {entry.partition("\n")[0] for entry in equivalents()}:
        assert path.startswith(tuple(f"{SOURCE}/{folder}/" for folder in FOLDERS))
        source = (ROOT / path).read_text(encoding="utf-8")
        count.update(mutation.change(source) for mutation in Places(path, source).mutations())
    assert {entry: count[entry] for entry in equivalents() if count[entry] != 1} == {}
