import pytest

torch = pytest.importorskip("torch")
from lab.layer_times import Watch  # noqa: E402
from lab.layers import Layers, LayerTensor, medians  # noqa: E402


def test_tensors_are_needed_in_the_order_of_forward_and_ready_in_that_of_backward():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4, bias=False))
    watch = Watch(model)
    for _ in range(2):
        model.zero_grad()
        watch.begin()
        watch.forward()
        loss = model(torch.randn(8, 64)).sum()
        watch.backward()
        loss.backward()
        watch.update()
        step = watch.end()
    names = [tensor["name"] for tensor in step["tensors"]]
    assert names[0] == "2.weight"
    assert sorted(names) == ["0.bias", "0.weight", "2.weight"]
    by_name = {tensor["name"]: tensor for tensor in step["tensors"]}
    assert by_name["0.weight"]["bytes"] == 64 * 64 * 4
    assert 0 < by_name["0.weight"]["needed_us"] <= by_name["2.weight"]["needed_us"] < step["forward_us"]
    ready = [tensor["ready_us"] for tensor in step["tensors"]]
    assert ready[0] > 0 and ready == sorted(ready) and ready[-1] < step["backward_us"]
    watch.remove()
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_medians_are_taken_of_each_time():
    def step(add):
        tensors = [{"name": "w", "bytes": 4, "needed_us": 1 + add, "ready_us": 2 + add}]
        return {"tensors": tensors, "before_us": 3 + add, "forward_us": 4, "backward_us": 5, "update_us": 6}

    assert medians([step(0), step(10), step(1)]) == Layers([LayerTensor("w", 4, 2, 3)], 4, 5, 4, 6)
