"""What the one class that asks policies gives them besides what other tests look at."""

from random import Random

import pytest

from runtime.decide import lazy_random


def test_a_generator_that_waits_draws_what_the_seed_gives():
    waiting, plain = lazy_random("7:q1:plan"), Random("7:q1:plan")
    for _ in range(3):
        assert waiting.random() == plain.random()
        assert waiting.choice("abcd") == plain.choice("abcd")
        assert waiting.randint(1, 100) == plain.randint(1, 100)
    with pytest.raises(AttributeError):
        _ = waiting.no_such_draw
