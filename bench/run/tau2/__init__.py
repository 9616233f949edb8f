"""tau2-bench through the proxy."""
