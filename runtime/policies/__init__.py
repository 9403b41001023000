"""The policies that need no torch. Importing this package registers them.

================= ================================================================================
random            any plan, any model, any depth; the floor that every other policy must beat
fixed             one plan and one model for every query; load-blind, drowns its model under load
cheapest          one agent on the cheapest model; load-blind, drowns that model first
least_loaded      one agent on the emptiest model; never looks at quality or at the deadline
predicted_latency one agent on the model that should answer first; never looks at quality
single_best       one agent, the best (model, depth) of validation; load-blind
greedy            best expected quality that fits the deadline, less a price on work; no lookahead
quality_only      greedy that takes the pool for idle; piles up on the best models
cascade           two cheap models, the strongest only if they disagree; needs comparable answers
self_consistency  one model sampled k times, the plurality; k times the load on one model
moa               every model answers, one synthesises; the slowest model sets the latency
gptswarm          agents with learned edges, frozen; cannot leave a crowded model
masrouter         a learned cascade over the question; its favourites drown while others idle
================= ================================================================================
"""

from runtime.policies.baselines import Cheapest, Fixed, LeastLoaded, RandomPolicy
from runtime.policies.cascade import Cascade
from runtime.policies.ensembles import MixtureOfAgents, SelfConsistency
from runtime.policies.gptswarm import GptSwarm
from runtime.policies.greedy import Greedy, QualityOnly
from runtime.policies.masrouter import MasRouter
from runtime.policies.single import PredictedLatency, SingleBest
from runtime.policy import register_policy

for _policy in (
    RandomPolicy,
    Fixed,
    Cheapest,
    LeastLoaded,
    PredictedLatency,
    SingleBest,
    Greedy,
    QualityOnly,
    Cascade,
    SelfConsistency,
    MixtureOfAgents,
    GptSwarm,
    MasRouter,
):
    register_policy(_policy.name, _policy.from_config)
