#!/usr/bin/env bash
# Unpack promtool and amtool from the distribution's packages into .cache/promtool, for the tests of role monitoring. It installs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=.cache/promtool
missing=()
for tool in promtool amtool; do
  command -v "$tool" > /dev/null || [[ -x $folder/$tool ]] || missing+=("$tool")
done
if ((${#missing[@]} == 0)); then exit; fi
if ! command -v apt-get > /dev/null; then
  echo "Commands ${missing[*]} not found; tests of role monitoring need them. Install Prometheus and Alertmanager." >&2
  exit 1
fi

known() { apt-cache show "$1" > /dev/null 2>&1; }

if ! known prometheus || ! known prometheus-alertmanager; then
  if [[ $(id -u) != 0 ]]; then
    echo "apt has no lists of packages; ${missing[*]} come from the distribution's. Run: sudo apt update." >&2
    exit 1
  fi
  apt-get update --quiet
fi
# Since Debian 13 promtool is a package of its own.
declare -A packages=([promtool]=prometheus [amtool]=prometheus-alertmanager)
if known promtool; then packages[promtool]=promtool; fi

rm -rf "$folder/new"
mkdir -p "$folder/new"
for tool in "${missing[@]}"; do
  (cd "$folder/new" && apt-get download --quiet --option APT::Sandbox::User=root "${packages[$tool]}")
  dpkg-deb -x "$folder/new/${packages[$tool]}"_*.deb "$folder/new"
  mv "$folder/new/usr/bin/$tool" "$folder/$tool"
  "$folder/$tool" --version
done
rm -rf "$folder/new"
