"""A pytest plugin: `anyscore._core` is the file that ANYSCORE_CORE names. Used by .ci/sanitize."""

import importlib.util
import os
import sys

path = os.environ["ANYSCORE_CORE"]
spec = importlib.util.spec_from_file_location("anyscore._core", path)
if spec is None or spec.loader is None:
    raise ImportError(f"{path} is no extension module")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["anyscore._core"] = module
