"""Settings that all tests share."""

import os

from hypothesis import settings

# No deadline: the time that one example takes says nothing on a machine that does other things as well. Continuous
# integration takes the same examples each time, so that it fails for what was changed.
settings.register_profile("development", deadline=None, max_examples=60)
settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "development")
