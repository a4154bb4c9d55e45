#!/usr/bin/env bash
# What Snakemake asks about a PBS job: running, success or failed.
set -euo pipefail
# A job that has ended is known by -x alone; a server that does not answer is no reason to give up.
said=$(qstat -x -f "$1" 2> /dev/null) || { echo running; exit 0; }
state=$(sed -n 's/^ *job_state = //p' <<< "$said")
code=$(sed -n 's/^ *Exit_status = //p' <<< "$said")
case "$state" in
  F | C) [ "$code" = 0 ] && echo success || echo failed ;;
  *) echo running ;;
esac
