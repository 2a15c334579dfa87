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


@pytest.fixture(autouse=True)
def _fresh() -> None:
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
