"""Fixtures every test may use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]

# A shell that starts this in the background has SIGINT ignored, and every command a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def incidents() -> Path:
    """Real recorded failures, one folder each."""
    return ROOT / "examples" / "incidents"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Other projects' test data, which is read in place and never copied here."""
    for candidate in (os.environ.get("TRACECORE_SHARED_DATA"), ROOT.parent / "shared" / "data"):
        if candidate and Path(candidate).is_dir():
            return Path(candidate)
    pytest.skip("no shared test data: set TRACECORE_SHARED_DATA to a directory that has it")
