#!/bin/sh
# Collect what a remedy destroys into an archive: evidence.sh ARCHIVE SECONDS
archive=$1 seconds=$2
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
# A command may hang in the driver, and one without output is evidence, too.
collect() {
  name=$1
  shift
  timeout --kill-after=5 60 "$@" > "$folder/$name" 2>&1
  echo "exit status $?" >> "$folder/$name"
}
collect kernel.log journalctl --dmesg --no-pager
collect journal.log journalctl --boot --no-pager --lines=2000 --unit='trtllm-*' --unit='nvidia-*' --unit=docker
collect nvidia-smi.txt nvidia-smi
collect nvidia-smi.xml nvidia-smi -q -x
collect nvlink.txt nvidia-smi nvlink --status
collect units.txt systemctl status --no-pager --lines=0 'trtllm-*' 'nvidia-*' docker
collect pci.txt lspci -vv -d 10de:
for file in /run/trtllm-fleet/health.json /var/lib/trtllm-fleet/remedies.json /proc/driver/nvidia/version; do
  [ ! -e "$file" ] || cp "$file" "$folder/" 2> /dev/null
done
# NVIDIA's report takes minutes, and may hang with a lost GPU.
if [ "$seconds" -gt 0 ] && command -v nvidia-bug-report.sh > /dev/null; then
  (cd "$folder" && timeout --kill-after=10 "$seconds" nvidia-bug-report.sh > bug-report.txt 2>&1)
fi
mkdir -p "$(dirname "$archive")" && tar -C "$folder" -czf "$archive" . && echo "$archive"
