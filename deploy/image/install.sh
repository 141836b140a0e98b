#!/bin/sh
# The two steps of the build that need Python packages. Works in the directory of the sources.
#
#   install.sh packages     the virtual environment with everything that tracecore needs, by hash
#   install.sh tracecore    tracecore itself, as a wheel; then nothing that installs is left
set -eu
here=$(dirname "$0")
place=/opt/tracecore
tools=/opt/build

fetch() {
  "$1/bin/python3" -m pip install --quiet --no-cache-dir --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes --requirement "$2"
}

case "$1" in
packages)
  python3 -m venv "$place"
  fetch "$place" "$here/requirements.txt"
  python3 -m venv "$tools"
  fetch "$tools" "$here/build-requirements.txt"
  ;;
tracecore)
  PATH="$tools/bin:$PATH" "$tools/bin/hatchling" build -t wheel -d "$tools/dist"
  "$place/bin/python3" -m pip install --quiet --no-cache-dir --disable-pip-version-check --no-deps --no-index \
    "$tools"/dist/tracecore_diagnosis-*.whl
  "$place/bin/python3" -m pip check
  "$place/bin/python3" -m pip uninstall --quiet --yes setuptools pip
  "$place/bin/python3" -m compileall -q "$place/lib"
  ;;
*)
  echo "install.sh packages | tracecore" >&2
  exit 2
  ;;
esac
