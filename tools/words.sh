#!/usr/bin/env bash
# Fail if a file has a word that the style guide replaces: patterns and replacements are in tools/words.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

excluded=(':!LICENSE' ':!LICENSES' ':!CODE_OF_CONDUCT.md' ':!tests/unit/fixtures' ':!lab/origin/packages/captures' ':!tools/words.txt')
found=0
while IFS= read -r line; do
  [[ $line == '#'* ]] && continue
  if git grep --untracked -nPI -e "${line%%  #*}" -- "${excluded[@]}"; then
    echo "^ ${line##*  # } (tools/words.txt)" >&2
    found=1
  fi
done < tools/words.txt
exit "$found"
