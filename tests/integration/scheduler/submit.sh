#!/usr/bin/env bash
# A scheduler of one machine: submit.sh MEM_MB MINUTES [CPUS] JOBSCRIPT starts the job and prints its id.
# QUEUE: folder of the queue. SECONDS_A_MINUTE: how long a minute of a time limit lasts.
set -euo pipefail
job="${*: -1}"
mkdir -p "$QUEUE"
id=$(mktemp -u XXXXXXXX)
MEM_MB="$1" setsid --fork bash -c '
  timeout --signal=TERM --kill-after=2 "$1" bash "$2" > "$3.log" 2>&1
  echo $? > "$3.rc.partial"
  mv "$3.rc.partial" "$3.rc"
' job "$(($2 * ${SECONDS_A_MINUTE:-60}))" "$job" "$QUEUE/$id" < /dev/null > /dev/null 2>&1
echo "$* " >> "$QUEUE/submitted"
echo "$id"
