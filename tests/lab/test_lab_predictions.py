import pytest
from lab.predictions import check, trace, what_if_options
from lab.schemes import parse, parse_list


def test_a_scheme_is_predicted_from_another_one_by_the_options_of_deft_replay():
    def options(traced: str, scheme: str) -> list[str]:
        return what_if_options(parse(traced, 2), parse(scheme, 2))

    assert options("fifo", "fifo") == []
    assert options("fifo:compression=int8", "fifo:compression=int8") == []
    assert options("fifo", "p3") == ["--policy", "p3", "--compression", "none"]
    assert options("fifo", "knapsack:compression=none") == ["--policy", "knapsack", "--compression", "none"]
    assert options("knapsack", "knapsack") == []
    assert options("fifo", "fifo:compression=int8") == ["--compression", "int8"]
    assert options("fifo:compression=int8", "p3") == ["--policy", "p3", "--compression", "none"]
    assert options("fifo", "fifo@2x") == ["--links", "all=2x"]
    assert options("fifo@2x", "fifo") == ["--links", "all=0.5x"]


def test_schemes_that_replay_cannot_make_of_the_first_are_refused():
    check(parse_list("compute,ddp,fifo,bytescheduler:compression=int8,fifo@0.5x", 2))
    for schemes in ("compute,ddp", "fifo,fifo-ddp", "fifo,fifo-accumulate-2", "fifo,fifo@free", "fifo,fifo@1",
                    "fifo,fifo:bucket_bytes=5MB", "fifo,knapsack"):  # fmt: skip
        with pytest.raises(ValueError, match="--predict"):
            check(parse_list(schemes, 2))


class Traced:
    """A job whose daemons write a file into the folder."""

    def __init__(self, scheme: str):
        self.scheme, self.steps = parse(scheme, 2), []

    def run(self, warmup, steps):
        self.steps.append(warmup + steps)

    def trace(self, folder, steps):
        (folder / f"{len(list(folder.iterdir()))}.trace").touch()
        self.run(0, steps + 3)


def test_a_folder_that_is_used_again_keeps_no_old_traces(tmp_path):
    folder = tmp_path / "traces/fifo/0"
    for _ in range(2):
        assert trace(Traced("fifo"), folder)
        assert [file.name for file in folder.iterdir()] == ["0.trace"]


def test_what_is_not_traced_takes_as_many_steps(tmp_path):
    jobs = [Traced(scheme) for scheme in ("fifo", "ddp", "compute")]
    assert [trace(job, tmp_path / job.scheme.text) for job in jobs] == [True, False, False]
    assert jobs[0].steps == jobs[1].steps == jobs[2].steps == [19]
