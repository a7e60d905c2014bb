#!/usr/bin/env bash
# Install LangChain, LiteLLM and OpenAI's client for Node.js into .cache/clients, for tests/e2e/test_gateway_models.py and test_clients.py.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=.cache/clients
wanted=$(cat tests/e2e/clients/{requirements.txt,package.json})
if [[ $(cat "$folder/installed" 2> /dev/null) == "$wanted" ]]; then exit; fi
if ! command -v npm > /dev/null; then
  echo "Command npm not found; tests of the gateway need Node.js. Run: sudo apt install nodejs npm." >&2
  exit 1
fi
rm -rf "$folder"
mkdir -p "$folder"
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet --disable-pip-version-check --requirement tests/e2e/clients/requirements.txt
cp tests/e2e/clients/package.json "$folder"
npm install --silent --prefix "$folder"
echo "$wanted" > "$folder/installed"
