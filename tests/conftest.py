"""One hypothesis profile for everyone, and a home of the tests' own: nobody's caches are read or written."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings

# No deadlines on busy machines, the same examples every time.
settings.register_profile("onecard", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("onecard")

# Most of these are read once, when the library that looks for them is imported.
HOME = Path(tempfile.mkdtemp(prefix="onecard-tests-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
for name in ("ONECARD_HOME", "HF_HOME", "TRACKIO_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
    os.environ[name] = str(HOME / name.lower())
