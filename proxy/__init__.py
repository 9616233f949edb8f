"""The proxy: an OpenAI-compatible server in front of vLLM that calibrates tool calls."""
