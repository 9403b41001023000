"""The decisions: what to plan, where to route, what to serve next.

Nothing here imports Ray, torch, FastAPI or vLLM, reads a clock or draws from a global
generator: time and generators come in as arguments. Only ``runtime.jail``, which runs as a program
of its own, watches the clock.
"""
