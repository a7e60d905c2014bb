#!/usr/bin/env bash
# Run ansible-test sanity on a copy of the checkout, because it needs the path .../ansible_collections/trtllm/fleet.
# Arguments are passed to ansible-test: `tools/sanity.sh --test validate-modules`.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=$PWD/.cache/sanity
copy=$cache/ansible_collections/trtllm/fleet
bin=$cache/bin
rm -rf "$copy" "$bin"
mkdir -p "$copy" "$bin" "$cache/home/.ansible/test/cache"

# Tracked and new files, without the link to the checkout itself, and without lab, molecule and tools, which Ansible never loads:
# `make lint` checks them.
git ls-files -z --cached --others --exclude-standard -- ':!collections' ':!lab' ':!molecule' ':!tools' |
  while IFS= read -r -d '' file; do
    if [[ -e $file || -L $file ]]; then printf '%s\0' "$file"; fi
  done |
  tar -c --null -T - | tar -x -C "$copy"
git -C "$copy" init --quiet

# ansible-test keeps its environments below HOME; keep them in this checkout. Python's ensurepip replaces the bootstrap script that it
# would download.
for kept in .config .pip .cache; do
  if [[ -e $HOME/$kept ]]; then ln -sfn "$HOME/$kept" "$cache/home/$kept"; fi
done
echo 'import ensurepip; ensurepip.bootstrap(upgrade=True, default_pip=True)' > "$cache/home/.ansible/test/cache/get_pip_24_2.py"

# A Python on the PATH that does not start (a shim of pyenv) stops ansible-test, so the PATH has only working ones.
for minor in 9 10 11 12 13; do
  for python in $(type -ap "python3.$minor") "$HOME"/.pyenv/versions/3."$minor".*/bin/python3."$minor"; do
    if "$python" -c 'import ensurepip' 2> /dev/null; then ln -s "$python" "$bin/" && break; fi
  done
done
PATH=$bin:$(dirname "$(type -p ansible-test)"):/usr/bin:/bin

cd "$copy"
HOME=$cache/home exec ansible-test sanity --requirements "$@"
