"""The simulator: virtual time, engines and answers, around production's own state machines."""
