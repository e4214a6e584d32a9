"""One hypothesis profile for everyone: no deadlines on busy machines, the same examples every time."""

from hypothesis import settings

settings.register_profile("onecard", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("onecard")
