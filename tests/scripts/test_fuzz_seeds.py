"""What tests/fuzz/seeds.py makes is in the tree. scripts/test fuzz shows that the seeds reach all kinds of messages."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_seeds_of_the_fuzzers_are_in_the_tree_as_they_are_made(load):
    made = {ROOT / path: content for path, content in load("tests/fuzz/seeds.py").seeds().items()}
    stale = [path for path, content in made.items() if not path.is_file() or path.read_bytes() != content]
    assert not stale, "run tests/fuzz/seeds.py"
