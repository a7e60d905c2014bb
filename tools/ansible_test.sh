#!/usr/bin/env bash
# Run ansible-test on a copy of the checkout, because it needs the path .../ansible_collections/trtllm/fleet:
#   tools/ansible_test.sh sanity --test validate-modules
#   tools/ansible_test.sh units --venv --python oldest tests/unit/plugins/modules/test_gpu_info.py
# `--python oldest` is the oldest installed Python that hosts may have.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=$PWD/.cache/ansible-test
copy=$cache/ansible_collections/trtllm/fleet
bin=$cache/bin
rm -rf "$copy" "$bin"
mkdir -p "$copy" "$bin" "$cache/home/.ansible/test/cache"

# Copy what git would commit, without deleted files and without the link to the checkout itself. Lab, Molecule, tools and their tests are not part of
# the collection; `make lint` and `make unit` check them. Tests of modules read the lab's captures.
excluded=(':!collections' ':!lab' ':!molecule' ':!tools' ':!tests/docs_site' ':!docs/docsite/conf.py' ':!tests/e2e' ':!tests/unit/lab' ':!tests/unit/tools' ':!conftest.py')
list() { git ls-files -z --cached --others --exclude-standard -- "$@"; }
{ list "${excluded[@]}" && list lab/origin/packages/captures; } |
  while IFS= read -r -d '' file; do
    if [[ -e $file || -L $file ]]; then printf '%s\0' "$file"; fi
  done |
  tar -c --null -T - | tar -x -C "$copy"
git -C "$copy" init --quiet

# ansible-test keeps its environments below HOME; they belong to this checkout. Python's own pip installer replaces the bootstrap script that
# ansible-test would download.
for kept in .config .pip .cache; do
  if [[ -e $HOME/$kept ]]; then ln -sfn "$HOME/$kept" "$cache/home/$kept"; fi
done
echo 'import ensurepip; ensurepip.bootstrap(upgrade=True, default_pip=True)' > "$cache/home/.ansible/test/cache/get_pip_24_2.py"

# A Python on the PATH that does not start, such as a shim of pyenv, stops ansible-test; it sees only those that start.
for minor in 9 10 11 12 13; do
  for python in $(type -ap "python3.$minor") "$HOME"/.pyenv/versions/3."$minor".*/bin/python3."$minor"; do
    if "$python" -c 'import ensurepip' 2> /dev/null; then ln -s "$python" "$bin/" && break; fi
  done
done
oldest=$(basename "$(printf '%s\n' "$bin"/* | sort --version-sort | head -n 1)")
PATH=$bin:$(dirname "$(type -p ansible-test)"):/usr/bin:/bin

cd "$copy"
HOME=$cache/home exec ansible-test "${@/#oldest/${oldest#python}}" --requirements
