from hypothesis import settings

# No deadline: how long an example takes is the machine's business.
settings.register_profile("seam", deadline=None, database=None)
settings.load_profile("seam")
