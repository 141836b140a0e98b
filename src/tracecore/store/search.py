"""Full-text search over incidents: headline, job, places, fingerprint and evidence.

Words are taken the same way on both databases: letters and digits, in lower case. A query is found where each of its
words begins a word of the incident.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, text

#: Different words of one incident, and characters of a word.
MAX_WORDS: Final = 600
LONGEST: Final = 64
#: Words of a query.
MAX_QUERY: Final = 16

#: A class of characters alone: Python's own expressions take linear time for it, and a tenth of the time of RE2's.
_WORD: Final = re.compile(r"[^\W_]+")


def words(*texts: str) -> list[str]:
    """The different words of texts, in order."""
    found: dict[str, None] = {}
    for said in texts:
        for word in _WORD.findall(said.lower()):
            found[word[:LONGEST]] = None
        if len(found) >= MAX_WORDS:
            break
    return [*found][:MAX_WORDS]


def index(connection: Connection, rows: Sequence[tuple[int, list[str]]], replaced: Iterable[int]) -> None:
    """Write the words of incidents.

    Args:
        rows: number and words of each.
        replaced: numbers that were written before.
    """
    old = [{"number": number} for number in replaced]
    if connection.dialect.name == "sqlite":
        if old:
            connection.execute(text("DELETE FROM incident_text WHERE rowid = :number"), old)
        if rows:
            connection.execute(
                text("INSERT INTO incident_text (rowid, words) VALUES (:number, :words)"),
                [{"number": number, "words": " ".join(found)} for number, found in rows],
            )
    elif rows:
        connection.execute(
            text(
                "INSERT INTO incident_text (rowid, words) VALUES (:number, array_to_tsvector(:words)) "
                "ON CONFLICT (rowid) DO UPDATE SET words = excluded.words"
            ),
            [{"number": number, "words": found or [""]} for number, found in rows],
        )


def forget(connection: Connection, numbers: Iterable[int]) -> None:
    """Remove incidents that are deleted."""
    if connection.dialect.name == "sqlite" and (gone := [{"number": number} for number in numbers]):
        connection.execute(text("DELETE FROM incident_text WHERE rowid = :number"), gone)


def condition(is_sqlite: bool, query: str) -> tuple[str, dict[str, Any]] | None:
    """SQL that is true of the incidents that match, with its parameters; None where the query has no word."""
    asked = words(query)[:MAX_QUERY]
    if not asked:
        return None
    if is_sqlite:
        match = " AND ".join(f'"{word}"*' for word in asked)
        return "incidents.number IN (SELECT rowid FROM incident_text WHERE incident_text MATCH :search)", {
            "search": match
        }
    match = " & ".join(f"'{word}':*" for word in asked)
    return (
        "EXISTS (SELECT 1 FROM incident_text WHERE incident_text.rowid = incidents.number "
        "AND incident_text.words @@ CAST(:search AS tsquery))"
    ), {"search": match}
