# Sourced by demo.sh and test.sh: enters the repository and makes its environment in .venv, once for each change of what it
# is made from.
#
#   PYTHON   the interpreter          (python3)
#   VENV     where it is              (.venv)
#   TORCH    which torch to install   (the versions that the tests run with; where an NVIDIA device is found, the newest
#                                      that the package takes)

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kforge_python="${PYTHON:-python3}"
kforge_venv="${VENV:-.venv}"

command -v "$kforge_python" >/dev/null 2>&1 || {
    echo "No $kforge_python on this machine: install Python 3.10 or newer, or set PYTHON to one." >&2
    exit 1
}
"$kforge_python" - <<'EOF'
import platform, sys
if sys.version_info < (3, 10):
    sys.exit(f"kforge needs Python 3.10 or newer, {sys.executable} is {platform.python_version()}: set PYTHON to a newer one.")
EOF

if [ -n "${TORCH:-}" ]; then
    kforge_torch="$TORCH"
elif command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q .; then
    kforge_torch="torch>=2.11"
elif [ "$(uname -sm)" = "Linux x86_64" ]; then
    kforge_torch="torch==2.13.0 triton==3.7.1"
else
    kforge_torch="torch==2.13.0"
fi

# kforge_environment EXTRAS: .venv with the package in place and its extras, for example "[dev]".
kforge_environment() {
    local extras="$1" stamp made
    stamp="$("$kforge_python" --version) $kforge_torch $extras $(cat pyproject.toml constraints.txt | cksum) $PWD"
    made="$kforge_venv/made-from"
    if [ ! -f "$made" ] || [ "$(cat "$made")" != "$stamp" ]; then
        echo "Making the environment in $kforge_venv (a few minutes on the first run) ..." >&2
        [ -x "$kforge_venv/bin/python" ] || "$kforge_python" -m venv "$kforge_venv" || {
            echo "$kforge_python cannot make a virtual environment: on Debian or Ubuntu, apt-get install python3-venv." >&2
            exit 1
        }
        rm -f "$made"
        # torch by itself and first; what comes after must keep the version that is there
        # shellcheck disable=SC2086  # several requirements
        "$kforge_venv/bin/python" -m pip install --quiet $kforge_torch </dev/null
        "$kforge_venv/bin/python" -c \
            'import importlib.metadata as m; print("torch==" + m.version("torch").partition("+")[0])' >"$kforge_venv/torch.txt"
        "$kforge_venv/bin/python" -m pip install --quiet -c constraints.txt -c "$kforge_venv/torch.txt" -e ".$extras" </dev/null
        echo "$stamp" >"$made"
    fi
    export PATH="$PWD/$kforge_venv/bin:$PATH"
    hash -r
}
