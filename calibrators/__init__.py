"""Calibration without I/O: action classes, tool-entry bias, and the flows that use them."""
