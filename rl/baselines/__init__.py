"""Training of the learned baselines, MasRouter's cascade and GPTSwarm's edges, on the simulator.

What they were trained to is served without torch by ``runtime.policies``.
"""
