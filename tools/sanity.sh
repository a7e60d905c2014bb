#!/usr/bin/env bash
# Runs ansible-test sanity on a copy of the checkout, because it wants the path .../ansible_collections/trtllm/fleet.
# Arguments go to ansible-test: `tools/sanity.sh --test validate-modules`.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=$PWD/.cache/sanity
copy=$cache/ansible_collections/trtllm/fleet
bin=$cache/bin
rm -rf "$copy" "$bin"
mkdir -p "$copy" "$bin" "$cache/home/.ansible/test/cache"

# What git would commit, without what was just deleted, without the link to the checkout itself, and without lab, molecule and tools:
# programs that Ansible never loads, for which `make lint` answers.
git ls-files -z --cached --others --exclude-standard -- ':!collections' ':!lab' ':!molecule' ':!tools' |
  while IFS= read -r -d '' file; do
    if [[ -e $file || -L $file ]]; then printf '%s\0' "$file"; fi
  done |
  tar -c --null -T - | tar -x -C "$copy"
git -C "$copy" init --quiet

# ansible-test keeps its environments below HOME; they belong to this checkout. Python's own pip installer takes the place of
# the bootstrap script that it would download.
for kept in .config .pip .cache; do
  if [[ -e $HOME/$kept ]]; then ln -sfn "$HOME/$kept" "$cache/home/$kept"; fi
done
echo 'import ensurepip; ensurepip.bootstrap(upgrade=True, default_pip=True)' > "$cache/home/.ansible/test/cache/get_pip_24_2.py"

# A Python that is on the PATH and does not start (a shim of pyenv) stops ansible-test, so it sees only those that do.
for minor in 9 10 11 12 13; do
  for python in $(type -ap "python3.$minor") "$HOME"/.pyenv/versions/3."$minor".*/bin/python3."$minor"; do
    if "$python" -c 'import ensurepip' 2> /dev/null; then ln -s "$python" "$bin/" && break; fi
  done
done
PATH=$bin:$(dirname "$(type -p ansible-test)"):/usr/bin:/bin

cd "$copy"
HOME=$cache/home exec ansible-test sanity --requirements "$@"
