"""Builds the real OpenTelemetry Collector with its own builder, once, into a cache outside the repository."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
MANIFEST = HERE / "builder.yaml"
#: Every module, also those that the builder and its templates ask for by themselves, with its hash: without these the
#: newest release of the core would be built with components of another one.
PINNED = (HERE / "go.mod", HERE / "go.sum")
BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.160.0"


def cache() -> Path:
    """Where built programs of other people are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracecore"


def collector() -> Path | str:
    """The program, or the reason there is none."""
    if not shutil.which("go"):
        return "Go is not installed, so the OpenTelemetry Collector cannot be built"
    pinned = b"".join(path.read_bytes() for path in (MANIFEST, *PINNED))
    digest = hashlib.sha256(pinned + BUILDER.encode()).hexdigest()[:12]
    place = cache() / f"otelcol-{digest}"
    program = place / "otelcol-tracecore"
    if program.exists():
        return program
    place.mkdir(parents=True, exist_ok=True)
    manifest = place / "builder.yaml"
    manifest.write_text(MANIFEST.read_text().replace("dist:\n", f"dist:\n  output_path: {place}\n", 1))
    # The builder's own `go mod tidy` asks for the modules of other people's tests too; compiling needs none of them.
    generate = ["go", "run", BUILDER, "--config", str(manifest), "--skip-get-modules", "--skip-compilation"]
    compile_ = ["go", "build", "-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o", str(program), "."]
    log = place / "build.log"
    with log.open("w") as out:
        for command in (generate, compile_):
            for path in PINNED:  # the builder writes a go.mod of its own
                shutil.copy(path, place / path.name)
            environment = {**os.environ, "CGO_ENABLED": "0"}
            if subprocess.run(command, stdout=out, stderr=out, cwd=place, env=environment, check=False).returncode:
                return f"the Collector did not build; see {log}"
    return program


if __name__ == "__main__":
    print(collector())
