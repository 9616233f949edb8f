"""Tests against vLLM's own classes; they run in vLLM's environment, and elsewhere are skipped."""
