#!/bin/sh
# Install the wheel and then the sdist of dist/ into a new environment each, and run some tests on what is installed.
# Usage: scripts/try_package.sh PYTHON, from the root of the repository, after a build.
set -eu
python=$1
root=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Away from the root, so that nothing but the installed package can be imported.
cp -R "$root/tests" "$root/pyproject.toml" "$work"
for package in "$root"/dist/pmm_mcmc-*.whl "$root"/dist/pmm_mcmc-*.tar.gz; do
    [ -f "$package" ] || { echo "no such file: $package; run python -m build first" >&2; exit 1; }
    echo "Trying $(basename "$package")"
    rm -rf "$work/env"
    "$python" -m venv "$work/env"
    "$work/env/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$root/constraints.txt" \
        "$package[netcdf,store]" pytest
    cd "$work"
    "$work/env/bin/python" -P -c "import pathlib, pmm_mcmc, sys
at = pathlib.Path(pmm_mcmc.__file__)
assert at.is_relative_to(sys.prefix) and at.with_name('py.typed').exists(), at"
    OMP_NUM_THREADS=1 "$work/env/bin/pytest" -q -p no:cacheprovider tests/langevin/test_midpoints.py \
        tests/engines/test_numba_random.py tests/model/test_native.py tests/doors/test_c_functions.py
    "$work/env/bin/python" -P -c "import pymc as pm, pmm_mcmc as pmm, xarray as xr
with pm.Model():
    pm.Normal('x')
    dt = pmm.sample(50, chains=2, random_seed=1, progressbar=False)
dt.to_netcdf('run.nc')
assert xr.open_datatree('run.nc').posterior.sizes['draw'] == 50"
    cd "$root"
done
