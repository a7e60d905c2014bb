#!/usr/bin/env bash
# Put the packages of inventory plugins, and the schema of cloud-init, into .cache for the tests of inventory/dynamic. With the argument azure those of
# Azure's plugin too (800 MB). It installs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

# A folder of its own for each: the clouds' packages and those of .venv need different versions of others.
packages() {
  local folder=.cache/$1 made
  made=$(.venv/bin/python --version && cat "tests/$1.txt")
  if [[ -f $folder/.made && $(< "$folder/.made") == "$made" ]]; then return; fi
  rm -rf "$folder"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --target "$folder" --requirement "tests/$1.txt"
  echo "$made" > "$folder/.made"
}

packages inventories
if [[ ${1:-} == azure ]]; then packages inventories-azure; fi

if [[ -d .cache/cloud-init ]]; then exit; fi
if ! command -v apt-get > /dev/null; then
  echo "apt-get not found; the test of cloud-init.cfg needs the schema in the distribution's package cloud-init. Use Debian or Ubuntu." >&2
  exit 1
fi
if ! apt-cache show cloud-init > /dev/null 2>&1; then
  if [[ $(id -u) != 0 ]]; then
    echo "apt has no lists of packages; cloud-init's schema comes from the distribution's. Run: sudo apt update." >&2
    exit 1
  fi
  apt-get update --quiet
fi
rm -rf .cache/cloud-init.new
mkdir -p .cache/cloud-init.new
(cd .cache/cloud-init.new && apt-get download --quiet --option APT::Sandbox::User=root cloud-init)
dpkg-deb -x .cache/cloud-init.new/cloud-init_*.deb .cache/cloud-init.new
mv .cache/cloud-init.new .cache/cloud-init
