"""schemathesis asks the API what its description allows and forbids, and finds nothing wrong."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from made import T0, incident
from running import running

from tracecore.server.app import make_app
from tracecore.server.diagnosing import Diagnoses
from tracecore.server.settings import ServerSettings
from tracecore.store.store import Store

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "12"))


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
def test_schemathesis_finds_nothing(sqlite_store: Store, tmp_path: Path) -> None:
    for number in range(3):
        sqlite_store.put_incident(incident(number), T0)
    app = make_app(sqlite_store, ServerSettings(rate=0))
    # Bundles are taken and wait: what the worker does with them has tests of its own.
    app.state.diagnoses = Diagnoses(sqlite_store, ServerSettings(), tmp_path / "uploads", time.time_ns)
    with running(app) as address:
        problems = [*_problems(address)]
    assert not problems, "\n\n".join(problems)


def _problems(address: str) -> Iterator[str]:
    schema = schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json")
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck]
        )
        @_given(operation)
        def ask(case: schemathesis.Case) -> None:
            case.call_and_validate()

        try:
            ask()
        except (Exception, BaseExceptionGroup) as error:
            yield f"{operation.label}: {str(error)[:1500]}"


def _given(operation: object):  # type: ignore[no-untyped-def]
    from hypothesis import given

    return given(case=operation.as_strategy())  # type: ignore[attr-defined]


def test_the_description_is_made_without_a_server(sqlite_store: Store) -> None:
    document = make_app(sqlite_store, ServerSettings()).openapi()
    assert len(document["paths"]) > 20
