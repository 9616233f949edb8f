"""`bench overhead`: what a proxy costs, measured against others on a canned upstream."""
