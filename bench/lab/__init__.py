"""The lab model: a small real model that makes genuine tool-call decisions on two cores."""
