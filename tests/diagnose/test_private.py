"""Secrets are taken out wherever evidence is shown, stored or sent, unless somebody asks for them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracecore.cli.main import root

SECRET = "Zk3vQ9x7Lm2Rt5Yw8Bn4"
LOG = f"""2026-03-01 10:00:00 starting with WANDB_API_KEY={SECRET}
2026-03-01 10:00:01 step 1 loss 2.0
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 7, in <module>
[rank0]:     connect("postgres://trainer:{SECRET}@db/x")
[rank0]: RuntimeError: cannot connect to postgres://trainer:{SECRET}@db/x with token=hf_{SECRET}
2026-03-01 10:00:03 export HF_TOKEN={SECRET}
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    place = tmp_path / "bundle"
    place.mkdir()
    (place / "rank0.log").write_text(LOG)
    (place / "exit_codes.json").write_text('{"0": 1}')
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "ml"},
        "involvedObject": {"kind": "Pod", "name": "train-0", "namespace": "ml"},
        "reason": "FailedMount",
        "message": f"MountVolume.SetUp failed: mount -o username=u,password={SECRET} failed: timed out",
        "type": "Warning",
        "lastTimestamp": "2026-03-01T10:00:02Z",
        "count": 12,
    }
    (place / "events.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [event]}))
    return place


@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_a_diagnosis_shows_no_secret(form: str, bundle: Path) -> None:
    shown = CliRunner().invoke(root, ["diagnose", str(bundle), "--format", form]).stdout
    assert "cannot connect to postgres://" in shown
    assert "[redacted]" in shown
    assert SECRET not in shown


def test_it_does_where_that_is_asked_for(bundle: Path) -> None:
    for form in ("text", "json", "html"):
        shown = CliRunner().invoke(root, ["diagnose", str(bundle), "--no-redact", "--format", form]).stdout
        assert SECRET in shown


def test_several_processes_read_without_secrets_too(bundle: Path) -> None:
    for number in range(1, 5):
        (bundle / f"rank{number}.log").write_text(LOG.replace("rank0", f"rank{number}") + "step 5 loss 1\n" * 300_000)
    shown = CliRunner().invoke(root, ["diagnose", str(bundle), "--jobs", "2", "--format", "json"]).stdout
    assert "[redacted]" in shown
    assert SECRET not in shown


def test_classify_cites_no_secret(bundle: Path) -> None:
    command = ["classify", "--exit-code", "1", "--log", str(bundle / "rank0.log")]
    for more in ([], ["--json"]):
        shown = CliRunner().invoke(root, [*command, *more]).stdout
        assert "[redacted]" in shown
        assert SECRET not in shown
    assert SECRET in CliRunner().invoke(root, [*command, "--no-redact", "--json"]).stdout


def test_reports_are_for_their_owner_alone(bundle: Path, tmp_path: Path) -> None:
    os.umask(0o022)
    report = tmp_path / "report.html"
    assert CliRunner().invoke(root, ["diagnose", str(bundle), "--report", str(report)]).exit_code == 0
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    # Another one that is there already keeps no wider access either.
    report.chmod(0o644)
    CliRunner().invoke(root, ["diagnose", str(bundle), "--report", str(report)])
    assert stat.S_IMODE(report.stat().st_mode) == 0o600


def test_what_supervise_keeps_is_private(bundle: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    script = f"import sys; sys.stderr.write({LOG!r}); sys.exit(1)"
    command = [sys.executable, "-m", "tracecore", "supervise", "--state-dir", str(state), "--max-restarts", "0", "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", script, "--api-key", SECRET],
        capture_output=True, check=False, preexec_fn=lambda: os.umask(0o022),
    )  # fmt: skip
    said = [line for line in done.stderr.decode().splitlines() if line.startswith("tracecore: ")]
    assert said
    assert SECRET not in "\n".join(said)
    for name in ("failure.json", "diagnosis.json", "attempt.json"):
        (path,) = state.rglob(name)
        assert SECRET not in path.read_text(), name
    wide = [
        (str(path.relative_to(tmp_path)), oct(stat.S_IMODE(path.lstat().st_mode)))
        for path in [state, *state.rglob("*")]
        if stat.S_IMODE(path.lstat().st_mode) & 0o077
    ]
    assert wide == []


def test_a_secret_in_the_name_of_a_file_is_not_shown(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    name = f"rank0-hf_{SECRET}.log"
    (folder / name).write_text(
        'Traceback (most recent call last):\n  File "t.py", line 7, in <module>\nValueError: no\n'
    )
    (folder / f"core-hf_{SECRET}.bin").write_bytes(bytes(range(256)) * 9)
    for form in ("text", "json", "html"):
        shown = CliRunner().invoke(root, ["diagnose", str(folder), "--format", form]).stdout
        assert SECRET not in shown
        assert "rank0-[redacted].log" in shown
    assert name in CliRunner().invoke(root, ["diagnose", str(folder), "--no-redact"]).stdout
