#!/usr/bin/env bash
# Build an execution environment with this collection: a container image for ansible-navigator, AWX and Automation Controller.
# The arguments are those of "ansible-builder build".
set -euo pipefail
cd "$(dirname "$0")/.."

folder=.cache/execution-environment
for runtime in podman docker; do
  if command -v "$runtime" > /dev/null && "$runtime" info > /dev/null 2>&1; then break; fi
  runtime=
done
if [[ -z $runtime ]]; then
  echo "Neither podman nor docker runs; building an image needs one of them. Start one and run the command again." >&2
  exit 1
fi

programs=$(.venv/bin/python -c 'from tools.environment import pinned; print(pinned("execution_environment"))')/bin
# From the files of the commit: the work tree may have an inventory with secrets.
mv "$(.venv/bin/python -m tools.build "$PWD/$folder/build")" "$folder/trtllm-fleet.tar.gz"
"$programs/ansible-builder" build --container-runtime "$runtime" --context "$folder/context" --tag trtllm-fleet-ee "$@"
