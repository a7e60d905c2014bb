#!/usr/bin/env bash
# Install the distribution's Chromium for tests of HTML pages: tests/unit/browser.py.
set -euo pipefail

if command -v chromium > /dev/null; then exit; fi
if ! command -v apt-get > /dev/null || [[ $(id -u) != 0 ]]; then
  echo "Command chromium not found; tests of HTML pages need it. Run: sudo apt install chromium (Debian)." >&2
  exit 1
fi
echo "Installing chromium with apt"
apt-get update --quiet
DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends chromium
# Ubuntu's package of that name is a stub that needs snap.
chromium --version
