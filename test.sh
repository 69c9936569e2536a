#!/usr/bin/env bash
# Sets up .venv where needed and runs every check: format, lint, types, tests. Arguments go to pytest, which
# runs two files of tests at a time (-n 0: one).
source "$(dirname "$0")/scripts/environment.sh"
kforge_environment "[dev,models]"
failed=0
ruff format --check . || failed=1
ruff check . || failed=1
mypy || failed=1
python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@" </dev/null || failed=1
exit "$failed"
