#!/usr/bin/env bash
# Create .venv from requirements.txt, with the first Python 3.11 or newer that can create virtual environments.
set -euo pipefail
cd "$(dirname "$0")/.."

# make puts .venv/bin first, whose Python would be removed with .venv.
PATH=$(tr ':' '\n' <<< "$PATH" | grep -v '/[.]venv/bin$' | paste --serial --delimiters=:)

new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
for name in python3.11 python3.12 python3.13 python3; do
  if "$name" -c "$new_enough" 2> /dev/null; then python=$name && break; fi
done
if [[ -z ${python:-} ]]; then
  echo "python3 is $(python3 --version 2>&1 || true); Python 3.11 or newer is needed. Run: apt install python3-venv (Debian 12, Ubuntu 24.04)." >&2
  exit 1
fi

if ! "$python" -c 'import ensurepip, venv' 2> /dev/null; then
  if ! command -v apt-get > /dev/null || [[ $(id -u) != 0 ]]; then
    echo "$python cannot create virtual environments. Run: sudo apt install $(basename "$python")-venv." >&2
    exit 1
  fi
  echo "Installing $(basename "$python")-venv with apt"
  apt-get update --quiet
  DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet "$(basename "$python")-venv"
fi

# An interrupted creation leaves a Python without pip.
if [[ ! -e .venv/.created ]] || ! .venv/bin/python -c "$new_enough" 2> /dev/null; then
  echo "Creating .venv with $("$python" --version), 1.4 GB; nothing else changes"
  rm -rf .venv
  "$python" -m venv .venv
  touch .venv/.created
fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
touch .venv/.made
