#!/bin/sh
# Print the path of a Python that the package supports (3.12 or 3.13), from PATH or pyenv; fail with a sentence if there is none.
for candidate in "$PYTHON" python3.12 python3.13 python3 python \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.13*/bin/python; do
    [ -n "$candidate" ] || continue
    path=$(command -v "$candidate" 2>/dev/null) || continue
    if "$path" -c 'import sys, venv; sys.exit(not (3, 12) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
        echo "$path"
        exit 0
    fi
done
echo "No Python 3.12 or 3.13 found on PATH or under pyenv: install one, or name it with 'make PYTHON=/path/to/python ...'." >&2
exit 1
