"""Setup of the tests of Keras, which run in processes of their own, one for each backend:

KERAS_BACKEND=tensorflow pytest tests/frameworks/keras        # or jax, or torch
"""

from __future__ import annotations

import os

import pytest

from helpers.sooner import SOONER

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.update(SOONER)

import keras

if keras.backend.backend() == "jax":
    from helpers import one_context

    one_context.install()


def pytest_configure(config: pytest.Config) -> None:
    """Ignore NumPy 2's warning of the way in which Keras makes NumPy arrays of tensors."""
    line = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
    config.addinivalue_line("filterwarnings", line)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
