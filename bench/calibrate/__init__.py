"""`bench calibrate`: margins once, the whole curve, the choice of b, a profile and a report."""
