#!/usr/bin/env bash
# Has a browser for the tests of pages: the distribution's Chromium, where tests/unit/plugins/modules/test_benchmark_pages.py looks for it.
set -euo pipefail

if command -v chromium > /dev/null; then exit; fi
if ! command -v apt-get > /dev/null || [[ $(id -u) != 0 ]]; then
  echo "The tests of pages need a browser named chromium. Install it, on Debian with: sudo apt install chromium" >&2
  exit 1
fi
apt-get update --quiet
DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends chromium
# Ubuntu's package of that name is a stub that wants snap.
chromium --version
