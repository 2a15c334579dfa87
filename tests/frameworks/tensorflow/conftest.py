"""Setup of the tests of TensorFlow, which run in processes of their own; see norecursedirs."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # else TensorFlow reports on the processor

import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


@pytest.fixture(autouse=True)
def _seeded_generator() -> None:
    tf.random.set_seed(0)
