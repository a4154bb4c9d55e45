#!/usr/bin/env bash
# Stop what up.sh started, by the process ids it left.
set -uo pipefail
base=/var/lib/resnet-mechanisms-slurm
[ -d "$base/run" ] || exit 0
[ -e "$base/run/slurmctld.pid" ] && timeout 10 scancel -u "$(id -un)" 2> /dev/null
for file in "$base"/run/slurmd.pid "$base"/run/slurmctld.pid /run/munge/munged.pid; do
  [ -e "$file" ] || continue
  pid=$(cat "$file")
  kill "$pid" 2> /dev/null
  for _ in $(seq 40); do
    kill -0 "$pid" 2> /dev/null || break
    sleep 0.25
  done
  kill -9 "$pid" 2> /dev/null
done
rm -rf "$base" /etc/slurm/slurm.conf /etc/slurm/gres.conf
exit 0
