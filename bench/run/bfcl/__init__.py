"""BFCL through the proxy."""
