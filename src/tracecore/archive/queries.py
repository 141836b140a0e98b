"""SQL over an archive, with DuckDB: views of the newest diagnoses, read-only and without other files."""

from __future__ import annotations

import importlib
from typing import Any

from tracecore.archive.dataset import Archive, ArchiveError

#: Views by name; `{bundles}` and `{facts}` are the files. docs/archive.md describes their columns. Times are UTC and
#: have no zone, because Python's values with a zone need a package that DuckDB does not bring.
VIEWS = {
    "bundles": """
        SELECT * REPLACE (CAST(diagnosed_at AS TIMESTAMP) AS diagnosed_at) FROM read_parquet({bundles})
        QUALIFY row_number() OVER (PARTITION BY bundle ORDER BY batch DESC) = 1""",
    "facts": """
        SELECT facts.* FROM read_parquet({facts}) AS facts SEMI JOIN bundles USING (bundle, batch)""",
    "incidents": """
        SELECT bundle, batch, incident->>'$.id' AS id, incident->>'$.status' AS status,
          incident->>'$.headline' AS headline, incident->>'$.root_cause.pattern' AS root,
          incident->>'$.failure.class' AS failure_class, incident->>'$.failure.retry.decision' AS retry,
          incident->>'$.job' AS job, CAST(incident->'$.suspects.ranks' AS BIGINT[]) AS ranks,
          CAST(incident->'$.suspects.nodes' AS VARCHAR[]) AS nodes,
          CAST(incident->'$.suspects.gpus' AS VARCHAR[]) AS gpus,
          CAST(CAST(incident->>'$.first_seen' AS TIMESTAMPTZ) AS TIMESTAMP) AS first_seen,
          CAST(CAST(incident->>'$.last_seen' AS TIMESTAMPTZ) AS TIMESTAMP) AS last_seen, incident AS document
        FROM (SELECT bundle, batch, unnest(CAST(document->'$.incidents' AS JSON[])) AS incident
              FROM bundles WHERE document IS NOT NULL)""",
    "verdicts": """
        SELECT bundle, batch, verdict->>'$."verdict.id"' AS id, verdict->>'$."pattern.name"' AS pattern,
          verdict AS document
        FROM (SELECT bundle, batch, unnest(CAST(document->'$.verdicts' AS JSON[])) AS verdict
              FROM bundles WHERE document IS NOT NULL)""",
}


def query(archive: Archive, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and rows that a query gives.

    Raises:
        ArchiveError: DuckDB is not installed, or refuses the query.
    """
    try:
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError:
        raise ArchiveError("queries need DuckDB: pip install 'tracecore-diagnosis[archive]'") from None
    files = {table: archive.files(table) for table in ("bundles", "facts")}
    if not files["bundles"]:
        raise ArchiveError(f"{archive.folder}: no bundle is finished yet; run `tracecore archive diagnose` again")
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET allowed_directories = [$folder]", {"folder": str(archive.folder.resolve())})
        # A query reads the archive and nothing else, whoever wrote it.
        connection.execute("SET enable_external_access = false")
        places = {table: _listed([str(path.resolve()) for path in paths]) for table, paths in files.items()}
        for name, text in VIEWS.items():
            connection.execute(f"CREATE VIEW {name} AS {text.format(**places)}")
        connection.execute("SET lock_configuration = true")
        try:
            found = connection.execute(sql)
            return [column[0] for column in found.description or ()], found.fetchall()
        except duckdb.Error as error:
            if "'pytz'" in str(error):
                raise ArchiveError("a column is a time with a zone: CAST(… AS TIMESTAMP) gives it in UTC") from None
            raise ArchiveError(str(error)) from None


def _listed(paths: list[str]) -> str:
    quoted = (path.replace("'", "''") for path in paths)
    return "[" + ", ".join(f"'{path}'" for path in quoted) + "]"
