"""The policies that need no torch. Importing this package registers them.

========== ======================================================================================
random     any plan, any model, any depth; the floor that every other policy must beat
fixed      one plan and one model for every query; load-blind, drowns its model under load
cheapest   one agent on the cheapest model; load-blind, drowns that model first
least_loaded one agent on the emptiest model; never looks at quality or at the deadline
greedy     best expected quality that fits the deadline, less a price on work; no lookahead
cascade    two cheap models, the strongest only if they disagree; needs comparable answers
========== ======================================================================================
"""

from runtime.policies.baselines import Cheapest, Fixed, LeastLoaded, RandomPolicy
from runtime.policies.cascade import Cascade
from runtime.policies.greedy import Greedy
from runtime.policy import register_policy

for _policy in (RandomPolicy, Fixed, Cheapest, LeastLoaded, Greedy, Cascade):
    register_policy(_policy.name, _policy.from_config)
