"""`bench drift`: whether action classes and margins moved between two windows of a decision log, and why."""
