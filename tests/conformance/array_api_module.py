"""The namespace as the public Array API suite imports it: on a 2×4 mesh, arrays split by the usual policy.

With the suite (data-apis/array-api-tests) beside this project, from its folder:

    PYTHONPATH=…/tests/conformance ARRAY_API_TESTS_MODULE=array_api_module pytest --disable-deadline array_api_tests

`SHARDWRIGHT_ENGINE=torch` runs it on another engine than the default. On torch too no test is excepted: what it lacks
runs in NumPy (`engines/torch/host.py`). If ever one must be, its id goes to a file for `--xfails-file`, under its reason.
"""

import os

import shardwright as sw
import shardwright.numpy as namespace

globals().update({name: getattr(namespace, name) for name in namespace.__all__})
sw.Mesh(data=2, model=4, engine=os.environ.get("SHARDWRIGHT_ENGINE", "numpy")).__enter__()
