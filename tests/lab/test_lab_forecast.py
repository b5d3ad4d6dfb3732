"""What --verify makes of its measurements."""

import json

import pytest
from lab import forecast, links
from lab.layers import Layers, LayerTensor
from lab.schemes import parse
from lab_commands import ROOT

DEFT = ROOT / "build/bin/deft"
needs_deft = pytest.mark.skipif(not DEFT.exists(), reason="deft is not built: run scripts/build")
LINK = links.Link("eth0", 100.0, 10.0)
NO_CPU = forecast.Cpu()
# Two layers: forward needs `first` at once and `last` after 30 us; backward makes last's gradient first.
LAYERS = Layers([LayerTensor("last", 1024, 30, 40), LayerTensor("first", 512, 0, 90)], 50, 100, 7, 8)


def spans(profile):
    return [(bucket["bytes"], bucket["forward_us"], bucket["backward_us"]) for bucket in profile["buckets"]]


def test_a_profile_adds_up_to_the_measured_step():
    profile = forecast.profile("m", LAYERS, [1024, 512], [LINK])
    # The rest of backward and the samples come before the first forward; the update goes with the bytes.
    assert spans(profile) == [
        (512, pytest.approx(30 + 7 + 10 + 8 / 3), 50),
        (1024, pytest.approx(20 + 16 / 3), 40),
    ]
    assert sum(f + b for _, f, b in spans(profile)) == pytest.approx(LAYERS.step_us)
    assert profile["links"] == [{"name": "eth0", "latency_us": 100.0, "bytes_per_us": 10.0}]


def test_slices_of_a_tensor_are_ready_and_needed_together():
    profile = forecast.profile("m", LAYERS, [512, 512, 512], [LINK])
    first, late, early = spans(profile)
    assert (early[2], late[2], first[2]) == (40, 0, 50)
    assert late[1] == pytest.approx(8 / 3)  # its share of the update: the layer's forward waits for both slices
    assert early[1] == pytest.approx(20 + 8 / 3)


def test_of_several_passes_only_the_last_sends_and_the_first_waits():
    single, double = (forecast.profile("m", LAYERS, [1024, 512], [LINK], passes) for passes in (1, 2))
    more = sum(f + b for _, f, b in spans(double)) - sum(f + b for _, f, b in spans(single))
    assert more == pytest.approx(LAYERS.step_us - LAYERS.update_us)
    assert spans(double)[0] == spans(single)[0]


def test_buckets_that_are_not_of_these_tensors_are_refused():
    with pytest.raises(forecast.CannotForecast, match="byte 1536"):
        forecast.profile("m", LAYERS, [1536, 512], [LINK])


def test_overlap_is_the_share_of_transfers_that_meet_compute():
    def compute(step, start, end):
        return {"kind": "compute", "step": step, "start_us": start, "end_us": end}

    def send(start, end):
        return {"kind": "send", "start_us": start, "end_us": end}

    events = [compute(0, 0, 5), compute(30, 100, 110), compute(30, 110, 120), compute(31, 140, 160)]
    events += [send(0, 50), send(100, 105), send(115, 145), send(150, 155), {"kind": "update"}]
    # Counted from step 20 on: 5 of 5, 5 + 5 of 30, 5 of 5.
    assert forecast.overlap(events) == pytest.approx(20 / 40)
    assert forecast.overlap([compute(30, 0, 1)]) == 0


def test_a_links_line_goes_through_both_times():
    part = 100_000
    exact = [count * 50.0 + 48 * part / 25.0 for count in (48, 12)]
    assert links.fitted("eth0", part, *exact) == links.Link("eth0", pytest.approx(50), pytest.approx(25))
    quicker = 48 * part / 1000.0
    assert links.fitted("eth0", part, 1000.0, 1010.0) == links.Link("eth0", 0, pytest.approx(quicker))


def test_what_a_scheme_uses_of_the_cpu_is_of_all_passes():
    assert forecast.Cpu.measured(1, 5, 3, 8) == forecast.Cpu(5, 3)
    # Two passes and one update, where training alone makes two: its workers seem to use 4 ms less.
    assert forecast.Cpu.measured(2, 5, -2, 8) == forecast.Cpu(10, 4)
    assert forecast.Cpu.measured(1, 5, -2, 8) == forecast.Cpu(5, 0)  # the machine drifts


@needs_deft
def test_the_simulator_is_told_the_schemes_options_and_the_daemons_cpu():
    simulator = forecast.Simulator(DEFT)
    tensors = [LayerTensor("last", 1_048_576, 30_000, 40_000), LayerTensor("first", 1_048_576, 0, 90_000)]
    layers = Layers(tensors, 50_000, 100_000, 0, 0)
    measured = forecast.profile("m", layers, [1_048_576, 1_048_576], [LINK])
    bound = simulator.forecast(parse("fifo", 1), measured, NO_CPU)
    # The last bucket is ready at 40 ms of backward, each takes 105; then come 10 of backward's rest and forward's 50.
    assert bound.step_ms == bound.network_ms == pytest.approx(40 + 2 * 105 + 60, rel=0.002)
    free = measured | {"links": [{"name": "eth0", "latency_us": 1, "bytes_per_us": 1e6}]}
    assert simulator.forecast(parse("fifo", 1), free, NO_CPU).step_ms == pytest.approx(150, rel=0.01)
    parts = [
        simulator.forecast(parse(f"bytescheduler:partition_bytes={size}", 1), measured, NO_CPU).step_ms
        for size in ("1MB", "16KB")
    ]
    assert parts[1] != parts[0]
    doubled = forecast.profile("m", layers, [1_048_576, 1_048_576], [LINK], 2)
    accumulated = simulator.forecast(parse("fifo-accumulate-2", 1), doubled, NO_CPU).step_ms
    assert accumulated == pytest.approx((bound.step_ms + 150) / 2, rel=0.002)
    # Half of what is sent meets compute or more; what the daemon uses then is compute's loss.
    with_daemon = simulator.forecast(parse("fifo", 1), measured, forecast.Cpu(daemon_ms=20))
    assert with_daemon.network_ms == bound.step_ms
    assert bound.step_ms < with_daemon.step_ms < bound.step_ms + 20
    # The plugin's time is backward's: half comes before the first bucket is ready, half meets its transfer.
    with_plugin = simulator.forecast(parse("fifo", 1), measured, forecast.Cpu(plugin_ms=20))
    assert with_plugin.network_ms == bound.step_ms
    assert with_plugin.step_ms == pytest.approx(bound.step_ms + 10, rel=0.002)
    unbound = simulator.forecast(parse("fifo", 1), free, forecast.Cpu(plugin_ms=20))
    assert unbound.step_ms == pytest.approx(170, rel=0.01)


@needs_deft
def test_knapsack_is_forecast_within_the_limits_of_training():
    simulator = forecast.Simulator(DEFT)
    slow = forecast.profile("m", LAYERS, [1024, 512], [links.Link("eth0", 1.0, 5.0)])
    step_ms = {
        text: simulator.forecast(parse(text, 1), slow, NO_CPU).step_ms
        for text in ("knapsack", "knapsack:max_staleness_steps=4:max_stale_percent=100", "usbyte")
    }
    fresh, late, synchronous = step_ms.values()
    assert late == pytest.approx(LAYERS.step_us / 1e3)
    assert late < fresh <= synchronous * 1.001


@needs_deft
def test_what_is_small_passes_on_gloo_links_alone():
    simulator = forecast.Simulator(DEFT)
    layers = Layers([LayerTensor("last", 65_536, 30, 40), LayerTensor("first", 512, 0, 90)], 50, 100, 7, 8)
    profiles = [
        forecast.profile("m", layers, [65_536, 512], [links.Link(name, 1, 1)]) for name in ("gloo:eth0", "mpi:eth0")
    ]
    gloo, other = (simulator.forecast(parse("bytescheduler", 1), profile, NO_CPU).step_ms for profile in profiles)
    # The small bucket's forward hides behind the other one's transfer.
    assert other - gloo == pytest.approx(profiles[0]["buckets"][0]["forward_us"] / 1e3, abs=2e-3)  # and two latencies


@needs_deft
def test_a_profile_that_the_simulator_refuses_is_an_error_that_says_why():
    measured = forecast.profile("m", LAYERS, [1024, 512], [links.Link("eth0", 0, 0)])
    with pytest.raises(forecast.CannotForecast, match="bytes_per_us"):
        forecast.Simulator(DEFT).forecast(parse("fifo", 1), json.loads(json.dumps(measured)), NO_CPU)
