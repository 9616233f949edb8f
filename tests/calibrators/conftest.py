import os

from hypothesis import HealthCheck, settings

# No deadline, and no complaint of slow drawing: how long an example takes is the machine's business.
# HYPOTHESIS_PROFILE=long looks harder.
settings.register_profile(
    "seam", deadline=None, database=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", deadline=None, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "seam"))
