"""Other people's programs: Debian's Prometheus and node_exporter; the Collector with its Prometheus receiver, built.

Nothing is installed: packages are taken apart into a cache outside the repository.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
MANIFEST = HERE / "builder.yaml"
#: Every module with its hash: the builder's templates ask for more than its manifest names.
PINNED = (HERE / "go.mod", HERE / "go.sum")
BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.160.0"
#: Programs by package.
PACKAGES = {"prometheus": "prometheus", "prometheus-node-exporter": "prometheus-node-exporter"}


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracecore"


def debian(package: str) -> Path | str:
    """The program of a Debian package, or the reason there is none."""
    name = PACKAGES[package]
    if (found := shutil.which(name)) is not None:
        return Path(found)
    place = cache() / f"debian-{package}"
    program = place / "usr" / "bin" / name
    if program.exists():
        return program
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return f"{package} is not installed, and there is no apt-get to get it with"
    with tempfile.TemporaryDirectory() as directory:
        download = ["apt-get", "download", "-q", package]
        if subprocess.run(download, cwd=directory, capture_output=True, check=False).returncode:
            if os.geteuid() == 0:  # lists of packages may be missing, as in a fresh container
                subprocess.run(["apt-get", "update", "-q"], capture_output=True, check=False)
            done = subprocess.run(download, cwd=directory, capture_output=True, check=False)
            if done.returncode:
                return f"apt-get cannot download {package}: {done.stderr.decode(errors='replace')[-300:]}"
        (archive,) = Path(directory).glob("*.deb")
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg-deb", "-x", str(archive), str(place)], check=True)
    return program if program.exists() else f"{package} has no program {name}"


def collector() -> Path | str:
    """The Collector, or the reason there is none. The first build takes minutes."""
    if not shutil.which("go"):
        return "Go is not installed, so the OpenTelemetry Collector cannot be built"
    pinned = b"".join(path.read_bytes() for path in (MANIFEST, *PINNED))
    digest = hashlib.sha256(pinned + BUILDER.encode()).hexdigest()[:12]
    place = cache() / f"otelcol-prometheus-{digest}"
    program = place / "otelcol-prometheus"
    if program.exists():
        return program
    place.mkdir(parents=True, exist_ok=True)
    manifest = place / "builder.yaml"
    manifest.write_text(MANIFEST.read_text().replace("dist:\n", f"dist:\n  output_path: {place}\n", 1))
    generate = ["go", "run", BUILDER, "--config", str(manifest), "--skip-get-modules", "--skip-compilation"]
    # Without the discovery of twenty clouds it is half as large; targets that are written down need none.
    compile_ = [
        "nice", "go", "build", "-mod=readonly", "-tags", "remove_all_sd", "-trimpath", "-ldflags=-s -w",
        "-o", str(program), ".",
    ]  # fmt: skip
    log = place / "build.log"
    with log.open("w") as out:
        for command in (generate, compile_):
            for path in PINNED:  # the builder writes a go.mod of its own
                shutil.copy(path, place / path.name)
            environment = {**os.environ, "CGO_ENABLED": "0"}
            if subprocess.run(command, stdout=out, stderr=out, cwd=place, env=environment, check=False).returncode:
                return f"the Collector did not build; see {log}"
    return program
