"""Passes of a user for the search of `deft optimize traces --pass FILE`: docs/optimize.md#passes-of-your-own.

    import deft

    @deft.optimization_pass
    def parts_that_fit_the_latency(job, best):
        for link in job["links"]:
            yield {"partition_bytes": int(20 * link["latency_us"] * link["bytes_per_us"])}

A pass is a function that gives dicts, or yields them. Each is a change of the best settings so far, and may have:

- `policy`
- `bucket_bytes` (0: the traced buckets), `partition_bytes` and `credit_bytes`
- `links`: a list of those of the job's links that it is to use
- `compression_min_bytes`: smaller tensors are not encoded. As long as nothing is encoded, it changes nothing

The search replays the job with each proposal, climbs from the better ones, and asks again, as long as that helps. So
a pass decides nothing. It asks once it has the best settings with all links, then with fewer links, and with each codec
that the user allows, if these win.

`job` is the traced job: `nodes`; `options`; `links` with `name`, `latency_us` and `bytes_per_us`; `buckets` in the
order of forward with `name`, `bytes`, `forward_us` and `backward_us`. `best` has all of these settings, `compression`
(`none`: nothing is encoded), and `step_us`.
"""

from collections.abc import Callable, Iterable

Changes = dict[str, "str | int | list[str]"]
Pass = Callable[[dict, dict], "Iterable[Changes]"]

registered: list[Pass] = []  # in the order in which they are asked


def optimization_pass(function: Pass) -> Pass:
    """Registers `function`. Two of one name are a ValueError: results are told by name."""
    if any(other.__name__ == function.__name__ for other in registered):
        raise ValueError(f"there is an optimization pass {function.__name__} already; give this one another name")
    registered.append(function)
    return function
