#!/bin/sh
# anyscore bench, with JAX and Keras among the rivals. Options are passed on.
set -eu
cd "$(dirname "$0")/.."
environment=.venv/rivals
if [ ! -x "$environment/bin/anyscore" ]; then
    "${PYTHON:-python3}" -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check \
        -c constraints.txt torch "jax[cpu]" keras ".[lab]"
fi
exec "$environment/bin/anyscore" bench "$@"
