"""Other people's programs for these tests, built once from the Go module registry into a cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

HELM = "3.22.0"
KUSTOMIZE = "5.8.1"
JUDGE = Path(__file__).with_name("judge")


def cache() -> Path:
    """Where built programs of other people are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracecore"


def helm(*, build: bool = False) -> Path | str:
    """The program, or the reason there is none."""
    return _installed("helm", f"helm.sh/helm/v3/cmd/helm@v{HELM}", cache() / f"helm-{HELM}", build)


def kustomize(*, build: bool = False) -> Path | str:
    """The program, or the reason there is none."""
    place = cache() / f"kustomize-{KUSTOMIZE}"
    return _installed("kustomize", f"sigs.k8s.io/kustomize/kustomize/v5@v{KUSTOMIZE}", place, build)


def judge(*, build: bool = False) -> Path | str:
    """The program of the folder beside this file, or the reason there is none."""
    sources = [JUDGE / "main.go", JUDGE / "go.mod"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    place = cache() / f"judge-{digest}"
    program = place / "judge"
    if program.exists():
        return program
    if not build:
        return "the judge of manifests is not built; make interop does it"
    place.mkdir(parents=True, exist_ok=True)
    for path in sources:
        shutil.copy(path, place)
    command = ["go", "build", "-p", "1", "-mod=mod", "-trimpath", "-o", str(program), "."]
    return _made(program, command, place, {"CGO_ENABLED": "0"})


def _installed(name: str, module: str, place: Path, build: bool) -> Path | str:
    program = place / name
    if program.exists():
        return program
    if not build:
        return f"{name} is not built; make interop does it"
    place.mkdir(parents=True, exist_ok=True)
    return _made(program, ["go", "install", "-p", "1", module], place, {"GOBIN": str(place)})


def _made(program: Path, command: list[str], place: Path, environment: dict[str, str]) -> Path | str:
    if not shutil.which("go"):
        return f"Go is not installed, so {program.name} cannot be built"
    polite = ["nice", "-n", "15", *command] if shutil.which("nice") else command
    log = place / "build.log"
    with log.open("w") as out:
        subprocess.run(polite, stdout=out, stderr=out, cwd=place, env={**os.environ, **environment}, check=False)
    return program if program.exists() else f"{program.name} did not build; see {log}"


if __name__ == "__main__":
    for made in (helm(build=True), kustomize(build=True), judge(build=True)):
        print(made)
