"""Can PURPLE's policy learn that a record which fits the query is worth more? The truth is planted.

    python benchmarks/mechanism.py [--seeds 3] [--questions 400]

Reward = strength * standardised cosine + noise (tests/train/planted_match.py). Printed is Spearman's rank
correlation with the rewards of users who were not learned from, beside what the true cosine reaches.
"""

import argparse
import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "train"))
planted = importlib.import_module("planted_match")

FUSIONS = ("match", "cross_attention", "residual_attention", "concat_hidden")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--strengths", type=float, nargs="+", default=[1.0, 0.5, 0.26])
    parser.add_argument("--layers", type=int, default=0)
    arguments = parser.parse_args()
    for strength in arguments.strengths:
        for fusion in FUSIONS:
            found, most = [], []
            for seed in range(arguments.seeds):
                world, new = (
                    planted.MatchWorld(strength, s, arguments.questions) for s in (seed, 100 + seed)
                )
                told = planted.options(fusion=fusion, num_layers=arguments.layers)
                found.append(planted.learned(world, new, told, seed)[0])
                most.append(new.attainable())
            row = " ".join(f"{one:+.3f} of {most_:.3f}" for one, most_ in zip(found, most))
            print(f"strength {strength}, {fusion}: {row}", flush=True)


if __name__ == "__main__":
    main()
