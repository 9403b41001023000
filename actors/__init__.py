"""Thin shells around the core: the only place with Ray Serve, FastAPI and vLLM."""
