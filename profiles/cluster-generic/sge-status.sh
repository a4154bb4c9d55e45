#!/usr/bin/env bash
# What Snakemake asks about a Grid Engine job: running, success or failed.
set -euo pipefail
if qstat -j "$1" > /dev/null 2>&1; then
  echo running
  exit 0
fi
# The record of a job that has ended appears after some seconds.
said=$(qacct -j "$1" 2> /dev/null) || { echo running; exit 0; }
failed=$(awk '$1 == "failed" {print $2}' <<< "$said" | tail -n 1)
code=$(awk '$1 == "exit_status" {print $2}' <<< "$said" | tail -n 1)
[ "$failed" = 0 ] && [ "$code" = 0 ] && echo success || echo failed
