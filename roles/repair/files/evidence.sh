#!/bin/sh
# Collect what a remedy destroys into an archive: evidence.sh ARCHIVE SECONDS
archive=$1 seconds=$2
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
# A command that hangs in the driver cannot be killed, so it is left. One without output is evidence, too.
collect() {
  name=$1 limit=$2
  shift 2
  { "$@" > "$folder/$name" 2>&1; echo "exit status $?" >> "$folder/$name"; : > "$folder/.$name"; } < /dev/null > /dev/null 2>&1 &
  while [ ! -e "$folder/.$name" ] && [ "$limit" -gt 0 ]; do
    sleep 0.5
    limit=$((limit - 1))
  done
  [ -e "$folder/.$name" ] || ! echo "no answer" >> "$folder/$name"
}
collect kernel.log 60 journalctl --dmesg --no-pager
collect journal.log 60 journalctl --boot --no-pager --lines=2000 --unit='trtllm-*' --unit='nvidia-*' --unit=docker
# The limits are half seconds.
if collect nvidia-smi.xml 60 nvidia-smi -q -x; then
  collect nvidia-smi.txt 60 nvidia-smi
  collect nvlink.txt 60 nvidia-smi nvlink --status
  [ "$seconds" -eq 0 ] || (cd "$folder" && collect bug-report.txt "$((seconds * 2))" nvidia-bug-report.sh)
fi
collect units.txt 60 systemctl status --no-pager --lines=0 'trtllm-*' 'nvidia-*' docker
collect pci.txt 60 lspci -vv -d 10de:
for file in /run/trtllm-fleet/health.json /var/lib/trtllm-fleet/remedies.json /proc/driver/nvidia/version; do
  [ ! -e "$file" ] || cp "$file" "$folder/" 2> /dev/null
done
mkdir -p "$(dirname "$archive")" && tar -C "$folder" --exclude='./.*' -czf "$archive" . && echo "$archive"
