"""Measurement: benchmark replay, over-calling metrics, and the choice of the bias."""
