#!/bin/sh
# Open the pages of reports in Chromium: run.sh PYTHON. Fails without it if CI is set.
set -eu
cd "$(dirname "$0")/../.."
for tool in chromium chromedriver; do
  command -v "$tool" >/dev/null && continue
  echo "make browser needs $tool: apt-get install chromium chromium-driver" >&2
  if [ -n "${CI:-}" ]; then exit 1; else exit 0; fi
done
"$1" -m pytest -m browser tests/browser
