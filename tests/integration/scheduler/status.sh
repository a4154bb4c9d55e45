#!/usr/bin/env bash
# What became of a job of submit.sh: running, success or failed.
set -euo pipefail
[ -e "$QUEUE/$1.rc" ] || { echo running; exit 0; }
[ "$(cat "$QUEUE/$1.rc")" = 0 ] && echo success || echo failed
