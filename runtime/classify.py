"""Task kinds by nearest prototype: a question is of the kind whose examples it resembles most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtime.types import TaskKind

Vector = npt.NDArray[np.float32]

NEIGHBOURS = 3

PROTOTYPES: dict[TaskKind, tuple[str, ...]] = {
    TaskKind.MATH: (
        "What is 12 times 7?",
        "How much is 45 plus 18?",
        "Calculate 144 divided by 12.",
        "Solve the equation 3x + 5 = 20 for x.",
        "A shop sells pens at 3 dollars each. How much do 8 pens cost?",
        "Tom has 15 apples and gives away 4. How many apples are left?",
        "A train travels 60 miles per hour for 3 hours. How far does it go?",
        "What is the area of a circle with radius 5?",
        "Find the greatest common divisor of 48 and 36.",
        "What is 20 percent of 250?",
    ),
    TaskKind.CODE: (
        "Write a Python function that reverses a string.",
        "Write a function to check whether a number is prime.",
        "Implement binary search in Python.",
        "def add(a, b): complete this function",
        "Fix the bug in this Python code.",
        "Write a program that sorts a list of integers.",
        "Write a SQL query that counts the rows of a table.",
        "Implement a function that returns the factorial of n.",
    ),
    TaskKind.KNOWLEDGE: (
        "What is the capital of France?",
        "Which planet is the largest in the solar system? A) Mars B) Jupiter C) Venus D) Earth",
        "Who wrote Romeo and Juliet?",
        "In which year did the Second World War end?",
        "What is the chemical symbol of gold?",
        "Which organ pumps blood through the human body?",
        "Which of the following statements about photosynthesis is correct?",
        "What is the largest ocean on Earth?",
    ),
    TaskKind.GENERAL: (
        "Write a short poem about the sea.",
        "Say hello in a friendly way.",
        "Write an email that thanks a colleague for help.",
        "Give me tips for a better sleep.",
        "Summarise this text in one sentence.",
        "Tell me a story about a brave cat.",
        "What should I cook for dinner tonight?",
        "Translate this sentence into Spanish.",
    ),
}


def nearest_kind(embedding: Vector, prototypes: Sequence[tuple[TaskKind, Vector]]) -> TaskKind:
    """The kind with the highest mean similarity over its ``NEIGHBOURS`` nearest prototypes.

    Args:
        embedding: shape [d], L2-normalised.
        prototypes: kind and embedding of each example, of the same shape.
    """
    similarities: dict[TaskKind, list[float]] = {}
    for kind, vector in prototypes:
        similarities.setdefault(kind, []).append(float(np.dot(embedding, vector)))
    nearest = {k: sorted(v, reverse=True)[:NEIGHBOURS] for k, v in similarities.items()}
    return max(nearest, key=lambda kind: sum(nearest[kind]) / len(nearest[kind]))
