#!/bin/sh
# Open the page of a report in Debian's Chromium: run.sh PYTHON.
set -eu
cd "$(dirname "$0")/../.."
for tool in chromium chromedriver; do
  command -v "$tool" >/dev/null && continue
  echo "make browser needs $tool: apt-get install chromium chromium-driver" >&2
  exit "${REQUIRED:-0}"
done
"$1" -m pytest -m browser tests/browser
