#!/usr/bin/env bash
# The parity gate as one step of a CI job: exit 0 when every model of the lock passed, 1 when one differs from PyTorch.
#
#     bash examples/gate_in_ci.sh [REPORT.json]
#
# SAMEVEC_LOCK, SAMEVEC_PROFILE and SAMEVEC_HOME are read by samevec itself. Keep SAMEVEC_HOME between runs, under a key made
# of the lock and constraints.txt: then the checkpoints are neither fetched nor exported again, and torch is not needed.
set -euo pipefail

report=${1:-parity.json}
export SAMEVEC_HOME=${SAMEVEC_HOME:-$PWD/.samevec}

# The lock first: a bad one is exit 2 within a second.
samevec lock check

# What is there already is proved again, on this machine and with these versions.
code=0
samevec parity --json >"$report" || code=$?

# 3: nothing exported yet from this lock, or for other built-in cases. Exporting ends with the same gate.
if [ "$code" -eq 3 ]; then
    code=0
    samevec export --json >"$report" || code=$?
fi

samevec status
exit "$code"
