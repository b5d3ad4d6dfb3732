import pytest
from lab import rates
from lab.netns import PAYLOAD_SHARE, core_shares


def test_rates_are_read_as_tc_writes_them():
    assert rates.bits_per_second("200mbit") == 200e6
    assert rates.bits_per_second("1.5Gbit") == 1.5e9
    assert rates.parse("200mbit,50mbit", 2) == ["200mbit", "50mbit"]
    assert rates.parse("10mbit", 3) == ["10mbit"] * 3
    assert rates.parse("none", 2) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [(rate, f"'{rate}' is no rate") for rate in ("fast", "200", "-5mbit", "0mbit")]
    + [("10mbit,", "'' is no rate"), ("10mbit,20mbit,30mbit", "gives 3 rates for 2 NICs")],
)
def test_a_rate_that_cannot_be_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        rates.parse(text, 2)


def test_a_rate_that_tc_does_not_know_is_refused():
    for rate in ("4bit", "7.9bit", "0.007kbit"):
        with pytest.raises(ValueError, match="tc has rates of 8bit and more"):
            rates.bits_per_second(rate)
    with pytest.raises(ValueError, match="8bit and more"):
        rates.scaled(["200mbit"], 1e-8)
    with pytest.raises(ValueError, match="8bit and more"):
        rates.for_coverage(1e6, 10.0, 1000, 2, 2)
    assert rates.scaled(["1kbit"], 0.25) == ["250bit"]  # and not 0kbit


@pytest.mark.parametrize(("nodes", "nics", "coverage"), [(2, 2, 1.0), (4, 1, 0.5), (3, 3, 2.0)])
def test_coverage_is_the_time_of_a_ring_over_all_nics(nodes, nics, coverage):
    compute_s, gradient_bytes = 0.35, 17_534_248
    shaped = rates.for_coverage(coverage, compute_s, gradient_bytes, nodes, nics)
    assert len(shaped) == nics
    payload = sum(rates.bits_per_second(rate) for rate in shaped) * PAYLOAD_SHARE / 8
    ring_bytes = 2 * (nodes - 1) / nodes * gradient_bytes
    assert ring_bytes / payload == pytest.approx(coverage * compute_s, rel=1e-3)


def test_each_node_keeps_to_its_own_cores():
    assert core_shares(2, [0, 1]) == [[0], [1]]
    assert core_shares(2, [0, 2, 4, 6, 8]) == [[0, 2], [4, 6]]
    assert core_shares(4, [3, 5]) == [[3], [5], [3], [5]]
