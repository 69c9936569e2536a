#!/usr/bin/env bash
# Sets up .venv where needed and runs `kforge demo` with the arguments given, for example: ./demo.sh --all
source "$(dirname "$0")/scripts/environment.sh"
kforge_environment ""
exec kforge demo "$@"
